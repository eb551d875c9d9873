"""Verdicts of users' code, in processes that can be killed. Start with `pool`.

    wire        messages between the pool and its processes
    clues       evidence that a process left when it ended or hung: thread, file, line
    coroutines  the event loop of a process, for verifiers that are coroutines
    memory      how much memory a process may use, and uses
    process     the program of one process; it imports the standard library alone
    handle      one process, seen from the pool
    pool        VerdictPool: hands out cases, enforces deadlines, finds the verdict at fault
    tryout      a judge tried on a few cases before a run

Users' code may hang, exit, crash, print and start threads. A fault costs the verdict that caused it and no other, so
the pool must find out which verdict that was:

- A process has a fixed number of threads, each with one verdict. A single thread is the main thread, where
  signal handlers can be set; of several none is. If a verdict tries to set one, all processes are replaced by such with
  one thread.
- A verdict past its deadline is at fault if the others of its process continue, which a heartbeat shows.
- A process that ends leaves evidence if it can: faulthandler names the thread that crashed, os._exit the thread that
  called it. Without evidence a verdict that was alone in its process is at fault.
- A process without a heartbeat has a thread that holds the interpreter, as a runaway regular expression does: the
  thread that uses the CPU is at fault.
- A case is sent when a thread is free. If none begins it, an earlier verdict has left something there that keeps the
  interpreter, or that ended the thread: the process is replaced. After a few new processes the case fails.
- Coroutines of a process share one event loop. If it doesn't run, the current task's verdict is at fault.
- An allocation far beyond the limit fails in the verdict that asks for it. A process that has grown beyond the limit is
  killed; a verdict is at fault that was alone in it while it grew.
- If none of this names a verdict, all of the process are retried, half as many together, until one is alone.

A verdict that was interrupted by another's fault is retried with its whole deadline.

Pools of other packages (concurrent.futures, pebble) run one task a process, so a hundred verdicts that wait for a
service would need a hundred interpreters. They also import the main module again, which in Ray's workers is Ray.
"""
