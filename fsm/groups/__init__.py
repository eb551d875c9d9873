"""Which group is which: the roster, and the effects that a change of its groups leads to.

Start with `book`: it carries out the changes that the rules made, and decides nothing. `roster` knows the groups by
place and class, in `dispatch_order`. `invariants` says what must hold of state and roster.
"""
