"""The controller: the process that feeds events to the core and carries its effects out. It imports no torch.

Start with `controller`: its docstring names the four phases of a run and the file of each. To follow one happening,
start with `pumps`: a sync of weights is `pumps.sync`, a rollout that dies is `pumps.generation` (its worker:
`Fleet.exchange`). Nothing here decides which group is trained, retried or dropped: that is the core's. Only
`event_loop` may call `Core.apply`.

    controller    the actor: phases, messages, interrupts, the watchdog
    starting      phase 1: actors, core, pumps
    event_loop    events in, effects out, tasks and timers
    pumps/        effects to calls of trainer, fleet and recorder; answers to events
    collapse      nothing is left to learn, said once
    run_recorder  metrics, notes of the trace, messages
    wall_clock    ends a run in time for `checkpointing.max_wall_s`
    ending        phase 4: what is saved, and the outcome
    held          the line of code that keeps the event loop from turning
    failures      the first cause of an error, in one line
    deadline      deadlines of calls to the trainer
    messages      what the controller sends to the process that started the run
"""
