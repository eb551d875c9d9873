"""Values that the state is made of: counts per class, and how a field of a tuple gets a new value."""
