"""What must hold of the core, and the tools that look for a counterexample. Nothing here runs in production.

Each part imports only those above it:

    model           the core's own functions, and every answer that the world may give, at any time
    properties      what must hold of every state, every transition, and every run
    counterexample  a run that breaks a property, replayed through the model's functions
    processes       work on other processes, which may hang, exit or die
    engine          the arrays and memories behind `explore`
    checker         `explore`: every state that a run can reach; `plain`: the same on a page, as the reference
    scenarios       scenario files, run against the real core
    check           what `evenstep check` explores of a configuration, and how it reports that
    evidence        proofs, mutants, twins and the configuration matrix: what docs/generated/assurance.md rests on
"""
