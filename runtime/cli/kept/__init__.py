"""Commands on what a run keeps.

export   its trace as events for the Perfetto viewer, and its checkpoints as models
samples  what the policy said
"""
