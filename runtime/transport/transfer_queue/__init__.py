"""The data plane through TransferQueue (PyPI `TransferQueue`, arXiv:2507.01663), an extra. Start with `plane`.

    installed  whether the package is installed; imports neither ray nor torch, for the command line
    client     one process's connection to the queue; the one module that imports the package, and torch with it
    plane      the backend of `data_plane.name: transfer_queue`, and the actor that owns the queue

A group is one sample of the queue, with its own key, and its arrays are the sample's fields. They go over ZeroMQ from
the generation worker to a storage unit and from there to the trainer. TransferQueue's controller, another actor, knows
keys and places. Its samplers and its records of consumed samples are unused: the core selects the groups of a step.
"""
