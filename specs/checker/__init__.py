"""The checker: every state that a run can reach, and what must hold of each."""
