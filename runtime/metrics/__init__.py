"""Metrics of a run: counted, written, drawn."""
