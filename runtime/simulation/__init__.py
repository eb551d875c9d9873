"""The control code of a run without Ray, on a virtual clock: thousands of faulty runs in minutes, each from a seed.

The core, `Control`, the pumps, the rows, the recorder and what a run saves at its end are the real ones. Generation
workers, the trainer, the data plane and the trace's file are not: they answer when a seed says, in any order, twice,
too late or never, and die. `python -m runtime.simulation --help` says how to run it; docs/simulation.md explains it.
Nothing else in the runtime imports this package.

    clock         an asyncio loop whose time is simulated
    plan          the kinds of faults; from a seed to a run: its configuration, delays and faults
    world         what outlives a controller, the dice, and rows of groups
    placement     which worker has which attempts
    witness       what must hold, checked by somebody who sees every event and every call
    fleet         generation workers
    trainer       trainer ranks, and the checkpoints that they write
    life          one controller, from its start or resume to its end or crash
    runs          a whole run, over crashes and resumes
    crash_points  a checkpoint after every event, and a crash after every later one
    scripted      the real control code driven by the moves of a scenario file
    mutants       faulty pumps, which the witness must notice
    table         what many runs met, as a document
"""
