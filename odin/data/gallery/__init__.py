"""The procedural gallery: three small scenes, path-traced on the spot, for tests and examples without a download.

`orbit` is object-centred, `rooms` is indoors with many pairs of views that share nothing, `blocks` is aerial.
Needs the optional packages of `odin[gallery]`; imports nothing else of `odin`.
"""

from odin.data.gallery.builder import NAMES, build

__all__ = ["NAMES", "build"]
