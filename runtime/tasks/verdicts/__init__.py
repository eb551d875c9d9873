"""Verdicts of users' code, in processes that can be killed.

Users' code may hang, exit, crash, print and start threads. A fault costs the verdict that was being made, and no
other; for that it must be known whose fault it was.

- A process has a fixed number of threads, each with one verdict. One thread: it is the main thread, where
  `signal.alarm` works. More: none of them is.
- A verdict past its deadline is at fault if the others of its process go on, which a heartbeat shows.
- A process that ends leaves evidence where it can: faulthandler names the thread that crashed, and os._exit the one
  that called it. Without evidence, and where no other verdict was there, the only one is at fault.
- A process without a heartbeat has a thread that keeps the interpreter to itself, as a runaway regular expression
  does: the one that uses the CPU.
- Where that tells nothing, all of its verdicts are made again in company half as large, until one is alone.

What a neighbour's fault has interrupted is made again, with its whole time.

Pools of other packages (concurrent.futures, pebble) have one task a process, so that a hundred verdicts which wait for
a judge would be a hundred interpreters; and they import the main module again, which in Ray's workers is Ray.

wire     messages between the pool and its processes
process  what runs in a process
handle   one process, seen from the pool
clues    what a process that ended or hangs has left: thread, file, line
pool     VerdictPool: hands cases out, keeps deadlines, finds out whose fault it was
tryout   a judge tried on a few cases before a run
"""
