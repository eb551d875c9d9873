"""Why a run waits: the verdict, the chain of what waits for what down to its root, and what to change.

    usual        what is usual for rollouts and calls, from those that were answered
    situation    a run at one moment: its state, its vitals, the time, and the trace to look things up in
    dead_ends    why nothing can fill the step any more
    waits        what was asked of the world and is not answered; what is filtered; what is slow
    ends         runs that are over: the outcome, what was kept, what --resume goes on from
    explanation  `explain`: the verdict
    sheet        the step as counts per class, and everything in print
    live         where a run stands, in one line: for the train command and `evenstep status`
    remote       a live run, by its name

What needs the checker is given by whoever calls: `runtime` knows `specs` only inside its commands.
"""
