"""From run directories to tables, figures and traces; results are kept raw and everything here is derived.

Imports of `odin` only what stands above it; never training, schedulers or transports.
"""
