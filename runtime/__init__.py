"""What carries out the core's effects: processes, models, data, files, and the command line.

Each part imports only those above it:

    wording        numbers with nouns, in messages
    files          files that a disk may refuse, that may be torn, or that are no plain files
    taxonomy       whose fault an error is: infra or data
    usual          deadlines that follow from what is usual in a run
    tasks          prompts, and what a completion is worth
    groups         prompt groups, their receipts and evaluations, as generation hands them over
    models         Hugging Face model directories, and the models that evenstep makes by itself
    generation     completions: an engine on torch, and one on vLLM
    evaluation     the policy measured on held-out prompts: sets, figures, confidence intervals
    training       from prompt groups to one optimizer step
    metrics        counted, written, drawn
    migrate        configurations of NeMo-RL, TRL and verl as one of evenstep
    trace          what the core was told and did: written, read, replayed
    samples        what the policy said: taken, written, read, chosen, printed
    checkpointing  when checkpoints are written, and which stay
    workers        generation workers in the configuration
    supervision    keys that say when a run is restarted
    settings       the configuration of a run
    output         the directory of a run, from its start to its summary
    checkpoints    what is saved, what it belongs to, and how a run resumes from it
    naming         names and resources of the run's actors
    transport      groups and weights on their way from one process to another
    actors         generation workers, reward workers and trainer ranks on Ray
    explain        why a run waits, or why it ended
    report         a trace as a page, or as events for the Perfetto viewer
    control        the controller: the process that feeds events to the core and carries its effects out
    launch         the process that a user starts: checks before a run, then the controller's messages
    cli            `evenstep`, one file a command
    simulation     the control code without Ray, on a virtual clock: thousands of faulty runs
"""
