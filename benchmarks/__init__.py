"""Paired measurements. Each module has `lines()`, which yields one dictionary per measurement, and runs alone too."""
