"""A sampler of a user's, one class in one file, and everything that evenstep does with it."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.config.setup import set_up
from fsm.core import Core
from fsm.errors import ConfigError, IllegalSnapshot
from fsm.machines.table import fire
from fsm.rules.laws import laws_of
from fsm.snapshot import restore
from runtime.explain.explanation import explain
from runtime.explain.finding import RunVerdict
from runtime.trace.files import make_header
from runtime.trace.reader import open_trace
from runtime.trace.replay import replay
from runtime.trace.writer import Trace
from specs.checker.closing import outlook
from specs.properties.catalog import properties_of
from specs.scenarios.world import World
from tests.runtime.cli.check.helpers import checked

SOURCE = """
from fsm.samplers import Eligible, GatedSampler, Stamp, chunk


class NewestDispatched(GatedSampler):
    batch_stamp = Stamp.TARGET_STEP

    @property
    def staleness_bound(self):
        return self.window

    def select(self, view, min_groups, max_groups):
        stamped = [pair for pair in view.ready_classes() if pair[0].target_step == view.version]
        return chunk(reversed(stamped), min_groups, max_groups)


class WantsTwice(GatedSampler):
    selects_from = Eligible.OLDEST_BUCKET

    def select(self, view, min_groups, max_groups):
        return chunk(view.ready_classes(), 2 * min_groups, max_groups)
"""
NAME = "custom sampler_of_a_user:NewestDispatched"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "sampler_of_a_user.py"
    path.write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield path
    sys.modules.pop("sampler_of_a_user", None)


def config_of(name: str = "NewestDispatched", *, check: bool = True, **given: Any) -> RunConfig:
    sampler = {"name": "custom", "target": f"sampler_of_a_user:{name}", "max_staleness_versions": 1}
    async_rl = {"sampler": sampler, **given.pop("async_rl", {})}
    document = {"grpo": {"num_prompts_per_step": 2, **given.pop("grpo", {})}, "async_rl": async_rl, **given}
    return parse_config(document, check=check)


def finish(world: World) -> str:
    """Everything goes well until the run is over. Returns the last snapshot."""
    while not world.over:
        running = sorted(world.core.book.roster.in_flight)
        if running:
            world.commit(running[-1])
        else:
            world.close()
    return world.snapshot()


def test_check_explores_it_and_its_bound(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sampler-option", "max_staleness_versions=1", "--scope", "quick"]
    result = checked(capfd, "--sampler", f"{file}:NewestDispatched", *arguments)
    assert result.exit_code == 0, result.output
    assert NAME in result.stdout

    file.write_text(SOURCE.replace("return self.window\n", "return 0\n"), encoding="utf-8")
    sys.modules.pop("sampler_of_a_user", None)
    result = checked(capfd, "--sampler", f"{file}:NewestDispatched", *arguments)
    assert result.exit_code == 2, result.output
    assert "violated: staleness: staleness at selection is at most 0" in result.stdout


def test_a_run_under_it_is_the_same_each_time_and_after_a_resume() -> None:
    world = World(config_of(), 8)
    assert world.core.book.stamps_target_steps
    assert world.core.limits.max_buffered == 4
    world.commit(1)
    saved = json.loads(world.snapshot())
    assert saved["sampler"] == NAME
    assert saved["sampler_keeps_every_slot"] is True
    assert restore(world.setup, saved).notices == world.core.notices
    once, again = World(config_of(), 8), World(config_of(), 8)
    assert finish(once) == finish(again)
    assert once.status == "completed"
    assert once.core.state.sheet.trained == 8
    again = World(config_of(), 8)
    again.commit(1)
    again.checkpoint()
    again.crash()
    finish(again)
    assert (again.status, again.core.state.sheet.trained) == ("completed", 8)


def test_a_snapshot_that_lost_a_slot_is_refused_and_an_older_one_is_taken_at_its_word() -> None:
    world = World(config_of(), 8)
    saved = json.loads(world.snapshot())
    saved["state"]["gate"][1] += 1
    with pytest.raises(IllegalSnapshot, match="as many slots admitted as are in hand"):
        restore(world.setup, saved)
    del saved["sampler_keeps_every_slot"]
    restore(world.setup, saved)


def test_the_window_that_is_smaller_than_that_of_the_checkpoint_is_told() -> None:
    world = World(config_of(), 8)
    narrow = config_of()
    assert narrow.async_rl.sampler.name == "custom"
    narrow.async_rl.sampler.options["max_staleness_versions"] = 0
    resumed = restore(set_up(narrow, 8), json.loads(world.snapshot()))
    assert any("written under a larger window" in notice for notice in resumed.notices)


def test_its_bound_and_its_window_are_among_the_properties() -> None:
    setup = set_up(config_of(), 8)
    laws = laws_of(setup.limits, setup.sampler, setup.sampler_name, fire)
    sentences = [edge.sentence for edge in properties_of(laws).edges]
    assert "staleness at selection is at most 1" in sentences
    assert laws.promises.max_lead_versions == 1


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        (
            "NewestDispatched",
            {"async_rl": {"max_buffered_rollouts": 3}},
            "needs 4 (grpo.num_prompts_per_step × (max_staleness_versions + 1) = 2 × 2)",
        ),
        (
            "NewestDispatched",
            {"async_rl": {"max_buffered_rollouts": 3}},
            "or async_rl.sampler.max_staleness_versions to 0",
        ),
        (
            "NewestDispatched",
            {"loss_fn": {"use_importance_sampling_correction": False}},
            "to true, or async_rl.sampler.max_staleness_versions to 0",
        ),
        ("WantsTwice", {"grpo": {"use_dynamic_sampling": True}}, "a bucket is trained before any later one"),
    ],
)  # fmt: skip
def test_it_is_refused_as_a_built_in_one_would_be(name: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        set_up(config_of(name, **given), 8)
    assert says in str(refused.value)
    assert f"custom sampler_of_a_user:{name}" in str(refused.value)


def test_explain_names_it_and_replay_answers_the_same(tmp_path: Path) -> None:
    config, path = config_of("WantsTwice", check=False), tmp_path / "trace.jsonl"
    cores: list[Core] = []

    def make_core(*given: Any, **named: Any) -> Core:
        cores.append(Core(*given, **named))
        return cores[-1]

    with Trace(path, make_header(config, num_prompts=8, seeds={})) as trace:
        world = World(config, 8, observer=lambda each: trace.observe(each, cores[-1]), make_core=make_core)
        while world.core.can_go_on:
            world.commit(min(world.core.book.roster.in_flight))
    found = explain(open_trace(path), outlook)
    assert found.verdict is RunVerdict.DEADLOCKED
    assert "sampler custom sampler_of_a_user:WantsTwice selects none of the 4 groups" in found.root
    assert replay(path, to=None, check=lambda core, before, transition: None).difference is None
