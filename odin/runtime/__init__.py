"""Decided at run time: which unit may start, on evidence that the rows it reads are published.

Pure: no clock, no sockets, no threads, no files. Two drivers run it: real processes (`odin.distributed`) and the
emulated cluster (`odin.cluster`). Imports nothing of `odin` but the floors above it.
"""
