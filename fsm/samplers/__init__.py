"""Samplers: which batch may start, which groups a step is made of, and what becomes of stale ones."""
