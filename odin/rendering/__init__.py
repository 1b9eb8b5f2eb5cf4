"""Renderers: project primitives to splats, compose splats to an image, and both ways back.

Imports nothing of `odin` but `odin.data`.
"""
