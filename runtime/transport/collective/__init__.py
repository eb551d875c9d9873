"""Weights by broadcast over torch.distributed, from the first trainer rank to all generation workers.

    meeting   the store where the processes meet, their messages, and the error
    bundle    all weights in one run of bytes, and the manifest of their places
    group     a connection to the store, and the process group of one set of workers
    sender    the trainer's side: start here
    receiver  a generation worker's side

Only `meeting` imports no torch, since the controller, which passes publications on, imports it.
"""
