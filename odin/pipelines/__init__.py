"""Pipelines: what is rendered, lost, updated and densified. One small module each, behind one protocol.

Imports nothing of `odin` but `data`, `rendering` and `primitives`.
"""
