"""Weights by broadcast over torch.distributed, from the first trainer rank to all generation workers.

bundle    all weights in one run of bytes, and the manifest that says what lies where
meeting   where the processes meet, what they tell each other there, and what can go wrong
group     the process group of one set of workers
sender    the trainer's side
receiver  a generation worker's side

`meeting` alone imports no torch: the controller, which only hands publications on, may import it.
"""
