"""Decided ahead of time: which views make a step, on which rank, and which steps may overlap.

Knows no clock, no sockets and no global random state. Imports nothing of `odin` but `data` and `rendering`.
"""
