"""Environments of users: prompts, answers to the policy's turns, and verdicts. Start with `interface`.

    interface  Environment and Episode, which users implement
    code       which environment a configuration names, and how a process imports it
    program    the program of a process that keeps episodes; imports the standard library alone
    host       one such process, seen from the generation worker: calls, deadlines, faults
    pool       EnvironmentPool: opens episodes in processes
    task       the task of the `data:` block whose episodes are users' code
    skyrl_gym  environments of skyrl-gym (an extra)
    verifiers  environments of verifiers (an extra)

An episode is one rollout. Its state lives in one process, in one thread, from `open` to `close`. It shares the process
with other episodes, and a fault costs as few of them as can be:

- A call that raises, or misses its deadline, costs its own episode: a data failure (L7).
- A call that ends the process, or keeps its interpreter to itself, costs its own episode too, if evidence names it
  (`runtime.tasks.verdicts.clues`). The other episodes of that process lose their state through no fault of theirs: an
  infra failure, so that their attempts are retried after a backoff (L7).
- A process with a call that hangs gets no more episodes, and is killed after the last of the others.

Verdict processes rate cases that any process may rate again; here nothing can be asked twice.
"""
