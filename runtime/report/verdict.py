"""What explain says of the end of a trace, for the top of the page."""

from __future__ import annotations

import time
from typing import Any

from fsm.errors import ConfigError
from runtime.explain.explanation import explain
from runtime.explain.situation import Look, is_open
from runtime.trace.files import TraceUnreadable
from runtime.trace.reader import TraceFile


def verdict_of(trace: TraceFile, look: Look) -> dict[str, Any]:
    """The explanation as JSON, as of now where the trace may still be written to; or `unknown`: why there is none.

    A trace that today's core does not follow, or whose custom sampler cannot be loaded here, can still be looked at.
    """
    try:
        return explain(trace, look, unix_s=time.time() if is_open(trace) else None).as_json()
    except (TraceUnreadable, ConfigError) as error:
        return {"unknown": str(error)}
