"""The directory of a run, from its start to its summary."""
