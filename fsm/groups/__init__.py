"""Which group is which: the roster, and the effects that its groups need."""
