"""The mutable state of training: rows, their optimizer state, the row update, checkpoints and PLY files.

Imports nothing of `odin` but `data` and `rendering`.
"""
