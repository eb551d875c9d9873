"""What crosses processes: prompt groups and weights."""
