"""Samples: what the policy said in each step, in samples.jsonl. docs/samples.md lists the keys of a line.

    config   the block `samples`
    taking   in the generation worker: which rollouts are kept, and their lines without what follows (torch)
    book     in the controller: what became of the groups whose rollouts are kept
    file     read the lines, and mark those of steps that a resumed run took again
    choose   the newest, best, worst, random, or most changed ones
    printed  samples on a terminal

A line is made in two halves, since texts never leave the generation worker otherwise: `taking` makes it with the texts
and the verdict, its receipt carries it, and `book` adds the step and the fate.
"""
