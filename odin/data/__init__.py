"""What comes in: COLMAP folders, transforms.json files and the procedural gallery, all as one `Scene`.

The top floor of the package: imports nothing else of `odin`.
"""
