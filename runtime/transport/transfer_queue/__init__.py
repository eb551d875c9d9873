"""The data plane through TransferQueue (PyPI `TransferQueue`, arXiv:2507.01663), an extra.

installed  whether the package is there
plane      the backend of `data_plane.name: transfer_queue`, and the actor that keeps the queue
client     one process's connection to the queue; the one module that imports the package, and torch with it

A group is one sample of the queue, under a key of its own, and its arrays are the sample's fields. They go from the
generation worker to a storage unit and from there to the trainer, over ZeroMQ; TransferQueue's own controller, an actor
beside ours, knows keys and places. Its samplers and its bookkeeping of who has consumed what are not used: which groups
a step trains on is for the core to say.
"""
