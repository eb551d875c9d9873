"""Checkpoints: what is saved, what it belongs to, and how a run goes on from it."""
