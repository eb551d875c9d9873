"""The process that a user starts: checks before a run, Ray, and the controller's messages until the run's end.

Start with `run_training` in `run`. This process imports no torch and never calls Ray: another one does, which it
watches (`supervision`). `model` and `prompt_lengths` run in a third. Every check belongs before the first actor
starts, and its message says what to set; every wait for Ray or the controller has a bound.

    preflight       the data, the directory, memory, CPUs and disk
    prompt_lengths  prompts that are too long (another process)
    model           the model directory: checked, made, warmed up (another process)
    export_model    a checkpoint as a model directory (needs torch; no run)
    run             a run from its settings to its summary
    supervision/    all processes of a run, watched, and the run restarted
    try_out         the first prompts and their rewards, without a run (needs torch)
    ray_session     a private cluster, or one that is joined
    driving         the controller's messages, and an Outcome even if it dies
    progress        what a terminal shows
    machine         free memory and CPUs, and the memory that a run takes
    processes       process trees and deadlines
    signals         SIGTERM, SIGHUP, SIGUSR1 and SIGALRM
"""
