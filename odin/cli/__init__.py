"""The `odin` command. It parses and prints; what it does is in `odin.api`.

`entry` is where it starts and where errors end, `commands` has a function for each command, `terminal` shows progress.
"""

from odin.cli.entry import main

__all__ = ["main"]
