"""Training: from prompt groups to one optimizer step, on one process or on FSDP2 ranks. Start with `trainer`.

config        the `policy`, `loss_fn` and `optimizer` blocks
step_metrics  the metrics of a finished step; like `config` it imports no torch, for the controller
advantages    from the rewards of a group to advantages
batching      from prompt groups to padded microbatches: reward shaping, overlong filtering, token budget
model         a Hugging Face causal LM directory as a model, and its log-probabilities
ranks         one process or several: sums, shares of a chunk, FSDP2 sharding
totals        the sums of a step
loss          the loss: clipped policy loss, correction, KL, entropy, aggregation
finite        numbers of a step that are not finite, and which prompts they come from
optim         AdamW, learning-rate schedules, gradient scaling and clipping
state         weights as arrays; saving and resuming, without pickle
trainer       StepTrainer: accumulate, finish_step, discard, state_numpy, save, load
"""
