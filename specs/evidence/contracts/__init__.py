"""Proof obligations that CrossHair must confirm: one a rule of every table (`rules`), and those of `functions`.

Each has wrong twins, which CrossHair must refute: an obligation that nothing can break proves nothing. `assumptions` is
what the rules' obligations assume. `python -m specs.evidence.contracts` proves and refutes all of them.
"""
