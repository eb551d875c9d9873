"""A live run on Ray, by its name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.explain.live import Standing


class NotReachable(Exception):
    """There is no such run, or no Ray. The message says what to do instead."""


ANSWER_S = 10.0
"""How long the controller is waited for."""


def trace_of(run: str, address: str, namespace: str) -> bytes:
    """The last records of a live run, with its state as of now, as a trace file has them. Raises NotReachable."""
    found: bytes | None = _ask(run, address, namespace, lambda controller: controller.recent_trace.remote())
    if found is None:
        raise NotReachable(f"run {run} has not begun: its actors are being made; ask again")
    return found


def standing_of(run: str, address: str, namespace: str) -> Standing:
    """Where a live run stands. Raises NotReachable."""
    found: Standing | None = _ask(run, address, namespace, lambda controller: controller.standing.remote())
    if found is None:
        raise NotReachable(f"run {run} has not begun: its actors are being made; ask again")
    return found


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
        raise NotReachable(
            f"Ray can't be reached at address {address} ({error}): name the cluster with --address, or {instead}"
        ) from error
    try:
        actor: Any = ray.get_actor(f"{run}-controller", namespace=namespace)
        return ray.get(ask(actor), timeout=ANSWER_S)
    except ValueError as error:
        raise NotReachable(
            f"Ray has no run {run} in namespace {namespace} ({error}): see cluster.run_name and cluster.namespace in "
            f"its config.yaml, or {instead}"
        ) from error
    except GetTimeoutError as error:
        raise NotReachable(f"the controller of run {run} does not answer within {ANSWER_S:g} s: {instead}") from error
    except RayError as error:
        raise NotReachable(f"the controller of run {run} can't be asked ({error}): {instead}") from error
    finally:
        ray.shutdown()
