"""Where the `odin` command starts, and how its errors and signals end."""

from __future__ import annotations

import dis
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import tyro

from odin import __version__
from odin.cli.commands import app
from odin.cli.terminal import show_notes

_DESCRIPTION = """Train Gaussian-splatting scenes on several processes, with synchronization of single primitives. \
For instance:

odin train --data gallery:rooms --ranks 2 --out runs/rooms

odin evaluate runs/rooms
"""
_PACKAGE = Path(__file__).resolve().parents[1]


class _Stopped(KeyboardInterrupt):
    """SIGTERM, as an exception, so that temporary folders vanish and ranks end as they do after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command, by default that of the command line.

    Raises SystemExit with 1 for errors, which are one line where a user can mend them and a traceback where not; with 2
    for words that are no command; with 130 after Ctrl-C and 143 after SIGTERM.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    show_notes()
    before = _stop_at_sigterm()
    try:
        if words in (["--version"], ["-V"]):
            print(f"odin {__version__}")
        else:
            app.cli(prog="odin", description=_DESCRIPTION, args=words, config=_PARSING)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, _Stopped) else signal.SIGINT
        print(f"odin: stopped by {number.name}", file=sys.stderr)
        raise SystemExit(128 + number) from None
    except BrokenPipeError:  # whoever read stdout, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        text = explanation(error)
        if text is None:
            raise
        print(f"odin: error: {text}", file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


_PARSING = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)


def explanation(error: Exception) -> str | None:
    """What an error tells a user, or None where it is a defect of the program and needs its traceback.

    A ValueError or RuntimeError is for users where a `raise` statement of this package made it: the same classes come
    out of numpy, torch and builtins, where they mean that something was called in a wrong way.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or type(error).__name__}"
    if isinstance(error, (ValueError, RuntimeError)) and _is_raised_here(error):
        return str(error)
    return None


def _is_raised_here(error: Exception) -> bool:
    """Whether the innermost frame of the traceback is in this package and stands at a `raise` statement."""
    innermost = error.__traceback__
    if innermost is None:
        return False
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    code = innermost.tb_frame.f_code
    is_raise = code.co_code[innermost.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return is_raise and Path(code.co_filename).is_relative_to(_PACKAGE)


def _stop_at_sigterm() -> signal.Handlers | None:
    """Make SIGTERM raise `_Stopped`; returns what it did before, None where this thread cannot change it."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, _raise_stopped)  # type: ignore[return-value]


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    raise _Stopped
