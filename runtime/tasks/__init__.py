"""Tasks: where prompts come from, and how a completion is rewarded. Start with `base` for a task of your own.

    base       the interfaces of tasks and judges, and their errors
    verifiers  the verifiers that a configuration may name: the reward of a completion against an answer
    judges     how users' verifiers and reasoning-gym's scorers are loaded and called
    rewards    the keys of tasks that users' verifiers rate, and the row that these get
    config     the `data:` block
    split      seeds, and which prompts are held out
    embedded   reversing letters and sorting digits: a tiny model learns them
    rows       rows of data files by number, and the digests of their prompts
    overlap    which files rows are from, and whether a set's are trained on
    files      prompts and answers from files, rewarded by a verifier
    gym        tasks of reasoning-gym
    environments  tasks of several turns by users' code, in processes that can be killed
    data       a run's data: its task, and the order in which it takes prompts
    verdicts   rewards computed by users' code, in processes that can be killed

Rewards of embedded tasks are computed by `OwnTask.verify`, in the reward worker; all others by a judge in a process
of `verdicts`. What those processes import (base, judges, verifiers) imports the standard library alone.
"""
