"""Training: from prompt groups to one optimizer step, on one process or on FSDP2 ranks.

Plain functions, and one class that holds the model and its optimizer:

    config      the `policy`, `loss_fn` and `optimizer` blocks
    advantages  rewards of a group to advantages
    overlong    what happens to rollouts that the length limit cut off
    batching    prompt groups to padded microbatches within a token budget
    model       a Hugging Face causal LM directory to a model, and its log-probabilities
    ratio       how much likelier a token is under one policy than under another
    kl          the divergence from a reference policy
    loss        the clipped policy loss, its correction, KL, entropy, aggregation
    totals      what a step adds up, and the metrics made of it
    optim       AdamW, learning-rate schedules, gradient scaling and clipping
    ranks       one process or several, and the sums over them
    fsdp        FSDP2 sharding
    weights     weights as numpy arrays, out of and into a model
    state       saving and resuming, without pickle
    trainer     StepTrainer: accumulate, finish_step, discard, state_numpy, save, load
"""
