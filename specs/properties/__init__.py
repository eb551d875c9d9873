"""What must hold of every run, as named public objects."""
