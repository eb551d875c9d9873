"""Generation: engines that sample completions, and rollouts made of them. Start with `engine`, the interface.

    config    the `generation:` block
    engine    the interface of an engine, its errors, and the requests that every engine refuses
    rollouts  from a task's item to a sampled prompt group, turn by turn
    evaluate  accuracy on held-out prompts
    on_torch  the engine on transformers and torch
    on_vllm   the engine on vLLM

`config` and `engine` import neither torch nor transformers, since the controller imports them. Rewards are computed
elsewhere: by reward workers (`runtime.tasks`).
"""
