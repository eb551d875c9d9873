"""Where a live run stands, in three lines, for the train command and `evenstep status`; and asking it over Ray."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from fsm.core import Core
from fsm.explain import status, waits_for_briefly
from fsm.state import charged
from runtime.explain.finding import seconds
from runtime.trace.show import printable

Json = Mapping[str, Any]
IDLE_SHOWN_S = 10.0
"""From then on the lines say for how long there was no progress."""
BAR_WIDTH = 40
BEFORE_BEGIN = "the weights of every worker, and the held-out accuracy before the first step"

AT_THE_END = "nothing more: the run is over, and is saved; one that completed is measured once more"


@dataclass(frozen=True, slots=True)
class Standing:
    """A run now. The figures of the last closed step are None until a step has closed."""

    status: str
    """As `fsm.explain.status` names it; `starting` before the run has begun, `ending` while it is saved."""
    step: int
    max_steps: int | None
    selected: int
    charged: int
    size: int
    in_flight: int
    max_inflight: int
    ready: int
    max_buffered: int
    queued: int
    spares: int | None
    """None if the run uses no pool."""
    gate: str
    dispatch_index: int
    reward: float | None
    """Of the last closed step, like the next two: the mean over all rollouts before filtering."""
    zero_variance_fraction: float | None
    tokens_per_s: float | None
    idle_s: float
    """Since a group last finished or a step closed (W2)."""
    waits_for: str
    restart: str | None = None
    """Such as "restart 2 of at most 3"; None unless the run was restarted."""


def standing_of_core(core: Core, last: Json | None, idle_s: float) -> Standing:
    """The standing of a core, with the record of the step that closed last (`StepRecord.as_json`)."""
    state, limits = core.state, core.limits
    sheet, step = state.sheet, state.trainer.version
    return Standing(
        status=status(state) if core.has_begun else "starting",
        step=step,
        max_steps=None if limits.max_steps < 0 else limits.max_steps,
        selected=state.step.selected,
        charged=charged(state, step),
        size=limits.size,
        in_flight=sheet.in_flight,
        max_inflight=limits.max_inflight,
        ready=sheet.ready,
        max_buffered=limits.max_buffered,
        queued=sheet.queued,
        spares=state.pool.spares if limits.uses_pool else None,
        gate=state.gate.status.name.lower(),
        dispatch_index=state.gate.dispatch_index,
        reward=None if last is None else last["unfiltered_reward"],
        zero_variance_fraction=None if last is None else last["zero_variance_fraction"],
        tokens_per_s=None if last is None else last["generation_tokens_per_s"],
        idle_s=round(idle_s, 3),
        waits_for=waits_for_briefly(state, limits, core.setup.sampler_name) if core.has_begun else BEFORE_BEGIN,
    )


def live_lines(standing: Standing) -> tuple[str, str, str]:
    """Three printable lines: the step and its groups; the places; what the step waits for."""
    done = "" if standing.max_steps is None else f" ({standing.step} of {standing.max_steps} done)"
    step = [
        f"step {standing.step}{done}  {standing.selected} selected + {standing.charged} charged of {standing.size}",
        standing.status.replace("_", " "),
        f"reward {number(standing.reward)}",
        f"zero variance {number(standing.zero_variance_fraction)}",
        f"{number(standing.tokens_per_s, '.0f')} tokens/s",
    ]
    if standing.restart is not None:
        step.append(standing.restart)
    if standing.idle_s >= IDLE_SHOWN_S:
        step.append(f"no progress for {seconds(standing.idle_s)}")
    places = [
        f"in flight {standing.in_flight} of {standing.max_inflight}",
        f"ready {standing.ready}",
        f"buffer {standing.in_flight + standing.ready} of {standing.max_buffered}",
        f"queued {standing.queued}",
        "no pool" if standing.spares is None else f"pool {standing.spares}",
        f"gate {standing.gate} at {standing.dispatch_index}",
    ]
    return "  ".join(step), "  ".join(places), f"waits for: {printable(standing.waits_for, widest=2_000)}"


def live_view(standing: Standing) -> Group:
    """The same for a terminal: a bar for the step, and the lines unwrapped."""
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in live_lines(standing)]
    lines[0].stylize("bold", 0, lines[0].plain.find("  "))
    lines[2].stylize("dim")
    return Group(bar(standing), *lines)


def bar(standing: Standing) -> Text:
    """A bar of the step: selected, charged, missing."""
    size = max(1, standing.size)
    chosen = BAR_WIDTH * standing.selected // size
    lost = BAR_WIDTH * (standing.selected + standing.charged) // size - chosen
    text = Text("█" * chosen, "green", no_wrap=True)
    return text.append("▒" * lost, "yellow").append("░" * (BAR_WIDTH - chosen - lost), "dim")


def number(value: float | None, form: str = ".2f") -> str:
    """A figure, or a dash where it is not known yet."""
    return "–" if value is None else format(value, form)


class NotReachable(Exception):
    """There is no such run, or no Ray. The message says what to do."""


class NoController(NotReachable):
    """There is no such run, or no Ray: also while a run is started or restarted."""


ANSWER_S = 10.0
"""How long to wait for the controller's answer."""


def trace_of(run: str, address: str, namespace: str) -> bytes:
    """The last records and the present state of a live run, as a trace file. Raises NotReachable."""
    lines: bytes = _ask(run, address, namespace, lambda controller: controller.recent_trace.remote())
    return lines


def standing_of(run: str, address: str, namespace: str) -> Standing:
    """Where a live run stands. Raises NotReachable."""
    standing: Standing = _ask(run, address, namespace, lambda controller: controller.standing.remote())
    return standing


def _ask(run: str, address: str, namespace: str, ask: Callable[[Any], Any]) -> Any:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        from ray.exceptions import GetTimeoutError, RayError
    except ImportError as error:
        raise NotReachable(f"a live run is asked over Ray, which is not installed ({error}); give its trace") from error
    instead = "give the trace of the run instead: evenstep explain runs/…/trace.jsonl"
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise NoController(
            f"Ray cannot be reached at address {address} ({error}): name the cluster with --address, or {instead}"
        ) from error
    try:
        actor: Any = ray.get_actor(f"{run}-controller", namespace=namespace)
        answer = ray.get(ask(actor), timeout=ANSWER_S)
    except ValueError as error:
        raise NoController(
            f"Ray has no run {run} in namespace {namespace}: see cluster.run_name and cluster.namespace in "
            f"its config.yaml, or {instead}"
        ) from error
    except GetTimeoutError as error:
        raise NotReachable(f"the controller of run {run} does not answer within {ANSWER_S:g} s: {instead}") from error
    except RayError as error:
        why = str(error).partition("\n")[0]
        raise NoController(f"the controller of run {run} cannot be asked ({why}): {instead}") from error
    finally:
        ray.shutdown()
    if answer is None:
        raise NotReachable(f"run {run} has not begun: its actors are being started; ask again")
    return answer
