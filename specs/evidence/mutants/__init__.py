"""Broken variants of the core: known faults, and mutants of the rules, which the properties must tell from the core.

A property that holds of the core shows little unless something breaks it. Here are faults that a control loop of this
kind is known to have (`specs.evidence.mutants.faults`), and every small change to the rule tables and to the decisions
beside them (`specs.evidence.mutants.tables`, `specs.evidence.mutants.ways_in`, `ways_out`). `python -m
specs.evidence.mutants` runs them all and writes which property tells which from the core.
"""
