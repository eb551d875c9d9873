"""Checkpoints: what is saved, which run, data and model it belongs to, and how a run resumes from it (C1 to C4).

Start with the docstring of `checkpoint`, which shows the directory. Names of files, keys and the format may not change:
a checkpoint of an older evenstep must load. Keys may be added, with a default for checkpoints that lack them.

    group_file  prompt groups in safetensors and JSON
    origin      the run, data and model of a checkpoint, compared before a resume
    checkpoint  write one, verify one, find the newest whole one
    retention   which checkpoints stay
    resume      which checkpoint a run resumes from, or why it is refused
"""
