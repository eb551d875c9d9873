"""A sampler that ends the process it is asked in proves nothing: that becomes an error that names it."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fsm.errors import SamplerError
from specs.processes.pool import WorkInterrupted


@contextmanager
def blaming(sampler: str | None) -> Iterator[None]:
    """SystemExit and its like, out of a custom sampler, are a SamplerError. None: no sampler from outside is asked.

    A KeyboardInterrupt is the sampler's where Ctrl-C raises none: in a process that ignores it or handles it by
    `WorkInterrupted`.
    """
    try:
        yield
    except (Exception, WorkInterrupted):
        raise
    except BaseException as cause:
        by_user = isinstance(cause, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if sampler is None or by_user:
            raise
        where = traceback.extract_tb(cause.__traceback__)[-1]
        raise SamplerError(
            f"sampler {sampler}: {type(cause).__name__}({cause}) was raised in {where.filename}, line {where.lineno}, "
            f"in {where.name}; that would end the process and prove nothing. Correct the sampler: it may raise errors, "
            f"and it may not end the process"
        ) from cause
