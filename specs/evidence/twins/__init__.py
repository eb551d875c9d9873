"""The same rules for SPIN (evenstep.pml, own_moves.pml) and TLC (Evenstep.tla), written by hand from docs/rules.md.

`python -m specs.evidence.twins` compares their counts with the core's on every run of configurations.yaml. A change to
a rule is written into both twins too.
"""
