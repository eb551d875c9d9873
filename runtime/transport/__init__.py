"""Data that crosses processes: prompt groups and weights.

    answers         messages between controller, generation workers and trainer
    data_plane      how groups travel from the generation workers to the trainer: the interface, and Ray's object store
    transfer_queue  the same through TransferQueue
    collective      weights by broadcast over torch.distributed
    weight_sync     how weights travel from the trainer to the generation workers: start here for weights

The controller imports all of these and must not import torch; modules that need torch are imported by functions.
"""
