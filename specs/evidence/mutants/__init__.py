"""Broken variants of the core, each of which some property must tell from the core.

A property that holds of the core shows little unless something breaks it. `faults` has what control loops of this kind
are known to do wrong, `tables` every small change to the rule tables, `decisions` changes to what is in no table. Those
written by hand are in faults.yaml and decisions.yaml: a function of the core, a text of it, and what it says instead.
`matrix` hunts each of them in the small runs of `portfolio`, and `python -m specs.evidence.mutants` writes
docs/generated/mutation.md. To explain a survivor, add a sentence to survivors.yaml.
"""
