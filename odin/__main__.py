"""``python -m odin``."""

from odin.cli import main

if __name__ == "__main__":
    main()
