"""Suites of configurations that are checked as a whole."""
