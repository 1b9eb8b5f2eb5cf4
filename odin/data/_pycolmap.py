"""pycolmap, imported so that the rest of the process works as before. Import it from here, never directly.

Two side effects of `import pycolmap` (4.2.1 on Linux) are kept away:

* Its binary carries a zlib of its own. Where it is also the first to load the system's libz, that library resolves its
  inner calls to the other copy, and the next PNG or zip file ends the process ("double free or corruption"). Importing
  Python's zlib first loads libz apart from it.
* It installs a handler for SIGTERM that prints a stack trace, so that every worker that is merely told to stop looks
  like a crash.
"""

from __future__ import annotations

import signal
import threading
import zlib  # noqa: F401 (before pycolmap, see above)

_terminate = signal.getsignal(signal.SIGTERM)

import pycolmap  # noqa: E402

# Python allows handlers to be set from the main thread only.
if _terminate is not None and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, _terminate)

__all__ = ["pycolmap"]
