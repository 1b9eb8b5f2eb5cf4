"""Run all benchmarks, or those named: `python -m benchmarks [rendering runtime ...]`. Prints JSON lines.

Exits with 1 where a measurement misses its goal ("ok": false); what could not be measured is null and does not count.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys

import benchmarks

NAMES = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks; print JSON lines.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    names = parser.parse_args().names
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    missed = []
    for name in names or NAMES:
        for line in importlib.import_module(f"benchmarks.{name}").lines():
            print(json.dumps({"group": name, **line}), flush=True)
            if line["ok"] is False:
                missed.append(f"{name}: {line['bench']}")
    if missed:
        print(f"{len(missed)} missed their goal: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
