"""The process that a user starts: what is looked at before a run, and what drives it."""
