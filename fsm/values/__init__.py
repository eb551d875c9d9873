"""Values that the state is made of: counts per class (`pages`), and fast updates of a tuple's fields (`updates`).

Both are hot paths of the core and know nothing of groups. Change them with `benchmarks/control_cost.py` at hand.
"""
