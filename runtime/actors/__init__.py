"""The run's actors on Ray, and what the controller holds of them. What imports torch is apart, and imported late.

naming             names, resources, and how an actor is started
reward_worker      RewardWorker: verdicts
reward_workers     all of them, from start to end
generation_worker  GenerationWorker: groups from orders to rows in the data plane
policy_host        PolicyHost: its engine, tokenizer and tasks (torch)
engines            the engine that the configuration names (torch)
fleet              Fleet: the generation workers, made anew when they die
trainer_rank       TrainerRank: a StepTrainer in a process of its own
chunk              a rank's share of a chunk (torch)
trainer_group      TrainerGroup: all ranks behind one handle
"""
