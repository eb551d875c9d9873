"""The rules: pure functions from a state to the next one and the changes that led to it.

`on_event` has one function for each event, `own_moves` what the core does by itself after each, in order, `losses` what
happens to a filtered or dropped group. Start with `changes`, the list of everything that can happen. A rule that
involves several machines, or counts of groups, is changed here. `sampler_calls` calls the sampler, `laws` has what is
fixed for a run, `outlook` tells when a run can never go on.

Not here: a rule of one machine is in its table (`fsm.machines`), which step is charged is the sampler's, whether a
failed attempt is retried is `Core._fail`'s. A transition fails before it replaces the state. Users' code is called in
`sampler_calls` alone, or where `specs.processes.hanging` lists the file. The mutants of `specs/evidence/mutants` edit
these functions by their text; CONTRIBUTING.md says what to run after a change.
"""
