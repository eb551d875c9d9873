"""A private cluster that does not come up is started again; what never comes up is told in one line."""

from typing import Any

import pytest
import ray

from runtime.control.failures import RunFailed
from runtime.launch.ray_session import STARTS, ray_session
from runtime.settings import load_settings

TIMED_OUT = "The current node timed out during startup."


def failing(times: int, begun: list[dict[str, Any]]) -> Any:
    """`ray.init` on a machine that is too busy for the first starts."""
    init = ray.init

    def start(**options: Any) -> Any:
        begun.append(options)
        if len(begun) <= times:
            raise Exception(TIMED_OUT)
        return init(**options)

    return start


def test_a_cluster_that_did_not_come_up_in_time_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", failing(1, begun))
    with ray_session(load_settings(None)):
        assert ray.is_initialized()
    assert len(begun) == 2
    assert not ray.is_initialized()


def test_a_cluster_that_never_comes_up_is_one_error_that_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", failing(STARTS, begun))
    says = rf"did not start, {STARTS} times in a row: {TIMED_OUT} The machine may be"
    with pytest.raises(RunFailed, match=says), ray_session(load_settings(None)):
        raise AssertionError("it never comes up")
    assert len(begun) == STARTS
