"""Pumps turn effects into calls, and what the calls bring back into events.

Start with `effects`, which hands each effect to its pump; each pump's docstring says what it consumes, waits for, is
unblocked by, and produces. A pump decides nothing about groups: it may keep track of calls under way, and reads no more
of the core's state than the version.

    rows         where each group's data is, until it is cleared
    generation   StartRollout, AbortRollout → GroupFinished, GroupFailed: also when a rollout or its worker dies
    not_applied  steps whose numbers are not finite, and when they stop the run
    training     TrainChunk, FinishStep → ClaimUnreadable, ChunkTrained, StepFinished
    checkpoints  a copy of the run between two steps, written while it goes on; waits and retries
    sync         SyncWeights → SyncFinished: where weights are synced; validations between steps
    clock        StartBackoff → BackoffOver, and the watchdog
    effects      each effect to its pump
"""
