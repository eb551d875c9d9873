"""The page: one HTML file with its style, script and data, which makes no requests.

Content of a trace is data, never markup. Texts are JSON with `<`, `>` and `&` escaped, and the script shows them as
text nodes. The content security policy allows only this script and this style, by their digests.
"""

import base64
import hashlib
import json
import math
import re
import time
from importlib import resources
from typing import Any

from fsm.errors import ConfigError
from fsm.state import NONE
from runtime.explain.explanation import explain_now
from runtime.explain.situation import Look
from runtime.report.attempts import STATES, in_lanes
from runtime.report.collect import Collected
from runtime.report.columns import NO_WORKER, NOT_YET, packed
from runtime.report.happenings import KINDS
from runtime.report.phases import CAUSES, ENDINGS, PHASES, WaitCause
from runtime.report.steps import STALENESS_SHOWN
from runtime.trace.files import TraceUnreadable
from runtime.trace.reader import TraceFile
from runtime.trace.show import printable

SCRIPTS = (
    "base.js",
    "view.js",
    "timeline.js",
    "steps.js",
    "histograms.js",
    "waits.js",
    "search.js",
    "samples.js",
    "main.js",
)
"""Parts of the page's one script, in order."""
LONGEST_TEXT = 20_000
"""Characters shown of one text of the verdict or the configuration."""


def page_of(collected: Collected, verdict: dict[str, Any], samples: dict[str, Any]) -> str:
    """The whole page in ASCII. `verdict` comes from `verdict_of`, `samples` from `samples_beside`."""
    parts = "\n".join(map(_part, SCRIPTS))
    style, script = _part("page.css"), f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    data, columns = _data(collected, verdict)
    policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; style-src 'sha256-{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    pieces = {
        "policy": policy,
        "style": style,
        "script": script,
        "data": embedded({**data, "samples": samples}),
        "columns": columns,
    }
    template = re.split(r"\{\{(\w+)\}\}", _part("page.html"))
    return "".join(pieces[part] if place % 2 else part for place, part in enumerate(template))


def embedded(given: Any) -> str:
    """JSON for a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(given, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def shown(given: Any) -> Any:
    """Plain data with all texts printable and cut; numbers that JSON does not have become texts."""
    match given:
        case str():
            return printable(given, widest=LONGEST_TEXT)
        case float() if not math.isfinite(given):
            return str(given)
        case dict():
            return {shown(str(name)): shown(item) for name, item in given.items()}
        case list() | tuple():
            return [shown(item) for item in given]
    return given


def _part(name: str) -> str:
    return resources.files("runtime.report").joinpath("page", name).read_text(encoding="ascii")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _data(collected: Collected, verdict: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """All that the page shows; and the packed columns, of which the data says where they are."""
    attempts = collected.attempts
    order, lanes = in_lanes(attempts.rows, collected.ended, attempts.workers)
    tables = {
        "attempts": attempts.rows,
        "order": order,
        "counters": collected.counters.rows,
        "phases": collected.phases.rows,
        "waits": collected.phases.waits,
        "calls": collected.happenings.calls,
        "marks": collected.happenings.marks,
        "steps": collected.steps,
        "metrics": collected.metrics,
    }
    places, columns = packed(tables)
    data = {
        "file": printable(str(collected.trace.path), widest=LONGEST_TEXT),
        "processes": [
            {**each._asdict(), "name": printable(each.name, widest=LONGEST_TEXT)} for each in collected.processes
        ],
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "records": collected.records,
        "first_seq": collected.first_seq,
        "begun": collected.begun,
        "ended": collected.ended,
        "over": collected.over,
        "torn": collected.trace.torn,
        **shown(collected.shape),
        "limits": None if collected.limits is None else collected.limits._asdict(),
        "verdict": shown(verdict),
        "sheet": collected.counters.sheet(),
        "absolute": collected.counters.anchored,
        "late_answers": collected.happenings.late_answers,
        "workers": attempts.workers,
        "lanes": lanes,
        "texts": collected.texts.kept,
        "words": {
            "states": STATES,
            "phases": PHASES,
            "marks": KINDS,
            "causes": CAUSES,
            "cause_columns": [cause.name.lower() for cause in WaitCause],
            "endings": ENDINGS,
        },
        "marks_for": {"none": NONE, "not_yet": NOT_YET, "no_worker": NO_WORKER, "staleness_shown": STALENESS_SHOWN},
        "tables": places,
    }
    return data, columns


def verdict_of(trace: TraceFile, look: Look) -> dict[str, Any]:
    """The explanation of the trace's end as JSON; or `unknown` with the reason why there is none.

    There is none if today's core differs from the recorded one, or if a custom sampler cannot be loaded here.
    """
    try:
        return explain_now(trace, look).as_json()
    except (TraceUnreadable, ConfigError) as error:
        return {"unknown": str(error)}
