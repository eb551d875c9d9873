"""Pumps: what generation, training and the clock do becomes events, and effects become calls.

rows        where each group's data is, until it is cleared
generation  StartRollout, AbortRollout ↔ GroupFinished, GroupFailed
training    TrainChunk, FinishStep ↔ ClaimUnreadable, ChunkTrained, StepFinished
sync        SyncWeights ↔ SyncFinished, and what is done between steps: validation, checkpoints
clock       StartBackoff ↔ BackoffOver, and the watchdog
pumps       all of them together, as the control's carrier
"""
