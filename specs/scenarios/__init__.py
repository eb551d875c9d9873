"""Scenario files (docs/scenarios.md), run against the real core.

`file` is the format, `run` makes the moves, `expectations` has a function for each key of an `expect`, and `world` is
the run that they drive; tests and users can drive it too.
"""
