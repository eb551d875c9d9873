"""Scenario files, run against the real core."""
