"""The rules: pure functions from a state to the next one and the changes that led to it.

`on_event` has one function for each event, `own_moves` what the core does by itself after each, in order, `losses` what
happens to a filtered or dropped group. Start with `changes`, the list of everything that can happen. A rule that
involves several machines, or counts of groups, is changed here. `sampler_calls` calls the sampler, `laws` has what is
fixed for a run, `outlook` tells when a run can never go on.
"""
