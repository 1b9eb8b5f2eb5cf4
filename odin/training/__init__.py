"""One unit (read, render, backward), the options of a run and what a run directory holds.

Knows nothing of ranks talking to each other: that is `odin.distributed`.
"""
