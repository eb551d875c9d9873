"""The control core of evenstep: explicit state machines without I/O, clock or randomness.

Each part imports only those above it:

    errors         who is to blame, and for what
    events         what the world tells the core
    effects        what the core asks of the world
    values         counts per class, and updates of a tuple's fields
    machines       one rule table a file, and the driver that fires their rules
    state          the whole state, as immutable values, and what a sampler sees of it
    samplers       which batch may start, and which groups a step is made of
    config         the configuration: parsed, checked as a whole, made into limits and a sampler
    rules          what an event does, and what the core then does by itself
    groups         which prompt is which: the roster, and the effects that its groups need
    explain        what a run waits for, in one sentence
    core           `Core.apply`: the only writer
    snapshot_form  what a snapshot must be before a core goes on from it
    snapshot       the control part of a checkpoint, to and from JSON
"""
