"""Proof obligations that CrossHair must confirm: one a rule of every table, and those of the free functions.

Each has seeded wrong twins, of which CrossHair must refute one: an obligation that nothing can break proves nothing.
`python -m specs.evidence.contracts` proves and refutes all of them.
"""
