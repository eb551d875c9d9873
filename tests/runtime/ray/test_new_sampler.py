"""A run trains under a sampler that evenstep has never seen, and is explained and replayed."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.explain.explanation import explain
from runtime.explain.finding import RunVerdict
from runtime.launch.ray_session import ray_session
from runtime.trace.reader import open_trace
from runtime.trace.replay import replay
from specs.checker.closing import outlook
from tests.runtime.ray.helpers import adds_up, metrics_of, run, settings_of

TARGET = "sampler_of_a_user:FreshestFirst"


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """As for other files, where Ray's processes find the sampler of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        with ray_session(settings_of({}, steps=1)):
            yield


def test_a_run_under_a_new_sampler_completes_and_is_explained_and_replayed(model: Path, tmp_path: Path) -> None:
    block = f'{{name: custom, target: "{TARGET}", max_staleness_versions: 1}}'
    outcome = run(settings_of({"async_rl.sampler": block}, steps=3), model, tmp_path)
    assert outcome.status == "completed", outcome.error
    assert adds_up(outcome.balance)
    assert [record["step"] for record in metrics_of(tmp_path)] == [0, 1, 2]
    assert outcome.trace is not None
    explained = explain(open_trace(outcome.trace), outlook)
    assert explained.verdict is RunVerdict.COMPLETED
    assert explained.situation.sampler == f"custom {TARGET}"
    result = replay(outcome.trace, to=None, check=lambda core, before, transition: None)
    assert result.difference is None
