"""Odin: primitive-level synchronization for distributed training of point-based scenes.

Read these first: ``data/scene.py`` (what comes in), ``primitives/row_update.py`` (what a step does to a
row), ``schedule/plan.py`` (what is decided ahead of time), ``runtime/board.py`` (what is decided at run
time), ``training/unit.py`` (one view on one rank), ``distributed/replicated.py`` (the ranks).
"""

__version__ = "0.1.0"
