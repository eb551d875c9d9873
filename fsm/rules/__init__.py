"""The rules: what an event does, and what the core then does by itself."""
