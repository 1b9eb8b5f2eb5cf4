"""Decided ahead of time: which views make a step, on which rank, and which steps may overlap.

Knows no clock, no sockets and no global random state; only `plan_io` and `figures` touch files. Imports nothing of
`odin` but the floors above it (`data` to `pipelines`).
"""
