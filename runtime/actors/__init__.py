"""The run's actors on Ray, and the controller's handles on them.

The controller imports this package and must not import torch: `policy_host` and parts of `trainer_rank` import it late,
in the actor's own process. To see what happens when a generation worker dies, start with `Fleet.exchange`; for a weight
sync, with `TrainerGroup.publish` and `Fleet.load`. Calls to a generation worker are numbered and begin in that order
(`CallOrder`); calls to trainer ranks are the same on every rank.

    reward_worker      RewardWorker: verdicts
    policy_host        PolicyHost: engine, tokenizer and tasks of a generation worker (torch)
    calls              calls to a generation worker: begun in order, with deadlines; EngineLost
    generation_worker  GenerationWorker: groups from orders to rows in the data plane
    seat               Seat: the place of a generation worker, which outlives it
    probing            liveness probes
    restarts           how many restarts are allowed, and when
    health             failures in a row; too few healthy workers
    fleet              Fleet: all generation workers; it restarts those that die or are quarantined
    trainer_rank       TrainerRank: a StepTrainer in a separate process
    trainer_group      TrainerGroup: all ranks behind one handle
"""
