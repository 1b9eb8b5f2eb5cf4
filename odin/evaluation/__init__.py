"""How good a trained model is: image metrics with one definition, and the protocol that says on which views.

Rendering is the caller's: images come in. Imports of `odin` only what stands above it (`odin.data`).
"""
