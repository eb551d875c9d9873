"""What docs/generated/assurance.md rests on; `assurance` gathers it and writes that page.

    small_run  a small run and its world, for mutants and twins
    contracts  what CrossHair must prove of every rule and of the free functions
    mutants    broken cores, and which property notices which
    twins      the same rules in Promela and TLA+, whose counts must be equal
    matrix     every combination of the main options, explored
    diagrams   the machines, drawn

After a change to a rule, run `make prove mutants twins`. A new rule has its obligations and mutants at once.
"""
