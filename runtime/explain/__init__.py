"""Why a run waits: the verdict, the chain of what waits for what down to its root, and what to do.

    finding      `RunVerdict` and `Finding`; how long rollouts and calls usually take
    situation    a run at one moment: state, vitals, time, and the trace to look things up in
    dead_ends    why nothing can fill the step any more: causes of deadlocks and livelocks
    waits        a call or rollout that hangs, groups that are filtered, rollouts that are slow
    losses       verdicts that are missing: which verifiers failed, how often and why
    explanation  `explain`: picks the finding; of a run that is over also outcome, model and checkpoint
    printed      the explanation in print
    live         where a live run stands, in three lines; asking it over Ray

Start with `explanation._find`. A new cause is one function in `dead_ends` or `waits`. The search for a continuation
(`specs.checker.closing.outlook`) is passed in by the commands: `runtime` does not import `specs` elsewhere.
docs/explain.md says how each verdict is found.
"""
