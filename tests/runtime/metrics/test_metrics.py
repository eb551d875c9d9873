"""Per-step metrics against numbers worked out by hand, and against the core's own book over random runs."""

import json
import sys
import types
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fsm.core import AppliedEvent
from fsm.errors import ConfigError, SamplerError
from fsm.events import FailureKind, GroupFinished
from fsm.snapshot import restore
from fsm.state import State
from runtime.launch.run import check_run
from runtime.metrics.accumulator import StepMeter, pass_rate
from runtime.metrics.step_record import StepRecord
from runtime.metrics.writers import (
    METRICS_FILE,
    MetricsBackendMissing,
    PrometheusWriter,
    close_writers,
    open_writers,
    scalars,
)
from runtime.settings import load_settings
from runtime.training.step_metrics import StepMetrics
from specs.scenarios.world import World
from tests.runtime.bookkeeping import config_of, random_moves, receipt_of, running_prompts, world_of

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")


class Metered:
    """A world, its meter, and a clock that the test sets."""

    def __init__(self, sampler: str, window: int = 1, num_prompts: int = 24, **changes: Any) -> None:
        self.now_s = 100.0
        self.meter: StepMeter | None = None
        config = config_of(sampler, window, **changes)
        self.early: list[tuple[AppliedEvent, State]] = []
        self.world: World = world_of(config, num_prompts, lambda event, core: self.observe(event, core.state))
        self.meter = StepMeter(self.world.core.limits, now_s=100.0)
        for transition, state in self.early:
            self.meter.observe(transition, state, 100.0)

    def observe(self, transition: AppliedEvent, state: State) -> None:
        if self.meter is None:
            self.early.append((transition, state))
        else:
            self.meter.observe(transition, state, self.now_s)

    @property
    def it(self) -> StepMeter:
        assert self.meter is not None
        return self.meter

    def finish_next(self, *rewards: float, **changes: Any) -> None:
        """The group that runs longest finishes."""
        self.finish(running_prompts(self.world)[0], *rewards, **changes)

    def finish(self, prompt: int, *rewards: float, tokens: tuple[int, ...] = (4, 6), **changes: Any) -> None:
        """A group finishes with these rewards, as a runtime would tell it."""
        zero_variance = len(set(rewards)) == 1
        self.world.apply(GroupFinished(self.world.running(prompt), zero_variance))
        self.it.receive(receipt_of(prompt, rewards, tokens, **changes))

    def close(self, train_s: float = 0.0, finish_s: float = 0.0, sync_s: float = 0.0) -> None:
        """The step closes, taking these times."""
        self.now_s += train_s
        self.world.chunk_trained()
        self.now_s += finish_s
        self.it.trained(trainer_metrics(self.world.core.state.trainer.version + 1))
        self.world.step_finished()
        self.sheet_at_close = self.world.core.state.sheet
        self.now_s += sync_s
        self.world.weights_synced()


def trainer_metrics(version: int, **changes: Any) -> StepMetrics:
    given: dict[str, Any] = {
        "version": version,
        "loss": -0.1,
        "grad_norm": 0.7,
        "lr": 3e-4,
        "kl": 0.01,
        "reference_kl": None,
        "entropy": 1.2,
        "clip_fraction": 0.05,
        "clip_fraction_low": 0.02,
        "clip_fraction_high": 0.03,
        "importance_weight_mean": 1.01,
        "importance_weight_max": 1.9,
        "logprob_mismatch_mean": 0.03,
        "logprob_mismatch_max": 0.9,
        "logprob_mismatch_share": 0.01,
        "tokens": 30,
        "sequences": 4,
        "masked_sequences": 0,
        "groups": 2,
        "reward": 0.5,
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "seconds": 0.2,
    }
    return StepMetrics(**given | changes)


def whole_chunks() -> dict[str, Any]:
    return {"async_rl": {"min_groups_for_streaming_train": 2}}


def only(records: list[StepRecord]) -> StepRecord:
    [record] = records
    return record


def test_one_step_by_hand() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.now_s += 2.0
    run.finish_next(0.0, 0.0)
    run.finish_next(1.0, 0.0, tokens=(3, 9), finished=(True, False))
    run.it.late_answer()
    run.now_s += 4.0
    run.finish_next(1.0, 0.0)
    run.close(train_s=1.0, finish_s=2.0, sync_s=1.0)
    record = only(run.it.take())
    assert run.it.take() == []
    assert (record.step, record.selected, record.charged, record.short) == (0, 2, 0, 0)
    assert record.time_s == record.wall_s == 10.0
    assert (record.assembling_s, record.training_s, record.finishing_s, record.syncing_s) == (6.0, 1.0, 2.0, 1.0)
    assert record.trainer_idle_share == 0.6
    assert record.reward == 0.5
    assert record.unfiltered_reward == record.unfiltered_accuracy == pytest.approx(2 / 6)
    assert record.zero_variance_fraction == pytest.approx(1 / 3)
    assert (record.finished_prompt_groups, record.filtered_prompt_groups, record.replaced_prompt_groups) == (3, 1, 1)
    assert record.late_answers == 1
    assert record.completion_length_mean == pytest.approx((10 + 12 + 10) / 6)
    assert record.completion_length_max == 9
    assert record.truncated_fraction == pytest.approx(1 / 6)
    assert record.generation_tokens_per_s == 3.2
    assert record.trained_tokens_per_s == 3.0
    assert (record.trained_tokens, record.masked_rollouts) == (30, 0)
    assert (record.kl, record.entropy, record.clip_fraction) == (0.01, 1.2, 0.05)
    assert (record.grad_norm, record.loss, record.lr) == (0.7, -0.1, 3e-4)
    assert record.gate in ("open", "closed")
    sheet = run.sheet_at_close
    assert (record.in_flight, record.ready, record.queued, record.spares) == (
        sheet.in_flight,
        sheet.ready,
        sheet.queued,
        sheet.spare,
    )


def test_lengths_pass_rates_and_repetition_by_hand() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.finish_next(1.0, 0.0, tokens=(3, 9), repetition=(0.5, 0.0))
    run.finish_next(1.0, 0.0, 0.0, 0.0, tokens=(5, 2, 2, 2), repetition=(0.0,) * 4)
    run.close()
    record = only(run.it.take())
    assert (record.completion_length_correct, record.completion_length_wrong) == (4.0, 3.75)
    assert record.repetition == pytest.approx(0.5 / 6)
    assert record.pass_rate_histogram == {
        "0": 0, "0-0.25": 0, "0.25-0.5": 1, "0.5-0.75": 1, "0.75-1": 0, "1": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("correct", "rollouts", "rate"),
    [(0, 8, "0"), (1, 8, "0-0.25"), (2, 8, "0.25-0.5"), (4, 8, "0.5-0.75"), (7, 8, "0.75-1"), (8, 8, "1"), (1, 1, "1")],
)
def test_a_pass_rate_falls_into_one_bin(correct: int, rollouts: int, rate: str) -> None:
    assert pass_rate(correct, rollouts) == rate


def test_retries_drops_by_kind_and_drops_in_a_row_by_hand() -> None:
    run = Metered("ready_first", num_prompts=48, **whole_chunks())
    prompt = running_prompts(run.world)[0]
    while prompt in running_prompts(run.world):
        run.world.fail(prompt, FailureKind.DATA, "line 3: no verdict")
    other = running_prompts(run.world)[0]
    run.world.fail(other, FailureKind.INFRA, "a worker died")
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.close()
    record = only(run.it.take())
    assert record.dropped_by_kind == {"infra": 0, "data": 1, "claim": 0}
    assert record.retries["infra"] == 1
    assert record.dropped_in_a_row_max == 0, "only infra failures count"


def test_rates_are_over_a_window_so_a_step_in_which_no_group_finished_is_not_zero() -> None:
    run = Metered("ready_first", window=2, num_prompts=48, **whole_chunks())
    for _ in range(4):
        run.finish_next(1.0, 0.0)
    run.now_s += 10.0
    run.close()
    run.now_s += 10.0
    run.close()
    first, second = run.it.take()
    assert (first.generation_tokens_per_s, second.generation_tokens_per_s) == (4.0, 2.0)
    assert (first.trained_tokens_per_s, second.trained_tokens_per_s) == (3.0, 3.0)
    for _ in range(2):
        run.finish_next(1.0, 0.0)
    run.now_s += 40.0
    run.close()
    assert only(run.it.take()).generation_tokens_per_s == 0.5, "the window is the last step alone"


def test_the_page_of_metrics_names_every_figure_of_a_step() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.close()
    record = only(run.it.take()).as_json()
    assert record == json.loads(json.dumps(record))
    page = Path("docs/metrics.md").read_text(encoding="utf-8")
    assert [name for name in record if f"`{name}`" not in page] == []


def test_under_in_order_a_group_counts_under_its_target_step() -> None:
    run = Metered("in_order", window=1, **whole_chunks())
    of_step_0, of_step_1 = running_prompts(run.world)[:2], running_prompts(run.world)[2:]
    run.finish(of_step_1[0], 1.0, 0.0)
    run.finish(of_step_1[1], 0.0, 0.0)  # replaced, for step 1 as well
    for prompt in of_step_0:
        run.finish(prompt, 0.5, 0.0)
    run.close()
    first = only(run.it.take())
    assert (first.finished_prompt_groups, first.filtered_prompt_groups, first.unfiltered_reward) == (2, 0, 0.25)
    run.finish_next(1.0, 0.0)
    run.close()
    second = only(run.it.take())
    assert second.step == 1
    assert (second.finished_prompt_groups, second.filtered_prompt_groups) == (3, 1)
    assert second.replaced_prompt_groups == 1
    assert second.unfiltered_reward == pytest.approx(2 / 6)


def test_without_a_stamp_a_group_counts_under_the_step_being_assembled() -> None:
    run = Metered("ready_first", window=1, **whole_chunks())
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)  # step 0 is full and in training: what finishes now counts under step 1
    run.finish_next(0.0, 0.0)
    run.close()
    assert only(run.it.take()).finished_prompt_groups == 2
    for _ in range(2):
        run.finish_next(1.0, 0.0)
    run.close()
    second = only(run.it.take())
    assert (second.finished_prompt_groups, second.filtered_prompt_groups) == (3, 1)


def test_staleness_is_that_of_the_selected_groups() -> None:
    run = Metered("ready_first", window=1, **whole_chunks())
    for _ in range(2):
        run.finish_next(1.0, 0.0)
    run.close()
    assert only(run.it.take()).staleness_max == 0
    for _ in range(2):
        run.finish_next(1.0, 0.0)
    start_weights = [group.group_class.start_weight for group in run.world.core.book.roster.chunk.values()]
    run.close()
    record = only(run.it.take())
    assert record.staleness_max == max(1 - weight for weight in start_weights) == 1
    assert record.staleness_mean == sum(1 - weight for weight in start_weights) / 2


def test_a_group_that_turns_out_unreadable_counts_as_dropped_and_not_as_selected() -> None:
    run = Metered("in_order", window=0, **whole_chunks())
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.world.claim_failed(next(iter(run.world.core.book.roster.chunk)))
    run.close()
    record = only(run.it.take())
    assert (record.selected, record.charged, record.dropped_prompt_groups) == (1, 1, 1)
    assert record.staleness_mean == 0.0


def test_a_worker_is_idle_while_its_counter_of_busy_seconds_stands_still() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.it.worker_busy("a", 7.0)
    run.it.worker_busy("b", 0.0)
    run.it.worker_busy("silent", 1.0)
    run.now_s += 8.0
    run.finish_next(1.0, 0.0)
    run.it.worker_busy("a", 9.0)
    run.it.worker_busy("b", 30.0)  # two clocks may differ a little: a share is never below 0
    run.finish_next(1.0, 0.0)
    run.close()
    assert only(run.it.take()).worker_idle_share == {"a": 0.75, "b": 0.0}
    run.it.worker_busy("a", 0.5)  # made anew
    run.now_s += 1.0
    for _ in range(2):
        run.finish_next(1.0, 0.0)
    run.it.worker_busy("a", 1.0)
    run.close()
    assert only(run.it.take()).worker_idle_share == {"a": 0.5}


def test_a_step_whose_sync_never_ends_has_its_record_at_the_close() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.world.chunk_trained()
    run.world.step_finished()
    assert run.it.take() == []
    run.it.close(run.now_s + 3.0)
    record = only(run.it.take())
    assert (record.syncing_s, record.reward, record.unfiltered_reward) == (3.0, None, 0.5)


def test_a_receipt_of_another_group_is_refused() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.finish_next(1.0, 0.0)
    with pytest.raises(ValueError, match="a receipt of prompt 7"):
        run.it.receive(receipt_of(7, (0.0, 1.0), (1, 1)))


def test_a_group_whose_sampler_gives_it_no_label_ends_the_run_and_its_rollouts_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Metered("ready_first", **whole_chunks())
    monkeypatch.setattr(run.world.core, "_labelling", run.world.core.setup.sampler)
    monkeypatch.setattr(run.world.core, "_label", no_label)
    run.finish_next(1.0, 0.0)
    run.it.close(run.now_s)

    assert run.world.status == "stopped"


def no_label(sampler: object, record: object) -> int:
    raise SamplerError("label it")


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("seed", range(5))
def test_over_a_run_the_records_sum_to_the_balance_sheet(sampler: str, seed: int) -> None:
    run = Metered(sampler, window=1, num_prompts=40)
    for move in range(10_000):
        run.now_s += 0.25
        random_moves(run.world, 10_000 * seed + move, 1)
        if run.world.over:
            break
    records = run.it.take()
    world, sheet = run.world, run.world.core.state.sheet
    assert world.status == "completed"
    found = [(record.step, record.selected, record.charged, record.short) for record in records]
    assert found == [tuple(closed) for closed in world.core.book.closed]
    assert sum(record.selected for record in records) == sheet.trained
    last = run.it._counted  # what counts under steps that never closed
    for name in ("filtered", "dropped", "replaced", "evicted", "aborted"):
        in_records = sum(getattr(record, f"{name}_prompt_groups") for record in records)
        assert in_records + sum(counted.lost[name] for counted in last.values()) == getattr(sheet, name), name
    assert sum(record.wall_s for record in records) == pytest.approx(records[-1].time_s)
    for record in records:
        parts = record.assembling_s + record.training_s + record.finishing_s + record.syncing_s
        assert parts == pytest.approx(record.wall_s)


def test_after_a_resume_the_groups_taken_back_are_not_counted_twice() -> None:
    run = Metered("in_order", window=1)
    run.finish_next(1.0, 0.0)  # selected at once, as a chunk of its own
    assert run.world.status == "training"
    saved = json.loads(run.world.snapshot())
    run.world.core = restore(
        run.world.setup, saved, observer=lambda transition: run.observe(transition, run.world.core.state)
    )
    run.world._open()
    run.world.chunk_trained()
    run.finish_next(1.0, 0.0)
    run.close()
    record = only(run.it.take())
    assert (record.selected, record.charged) == (2, 0)
    assert (record.staleness_mean, record.staleness_max) == (0.0, 0)


# Writers


def test_metrics_are_json_lines_that_a_resumed_run_goes_on_with(tmp_path: Path) -> None:
    for step in (0, 1):
        [writer] = open_writers(tmp_path, config={})
        writer.write("step", {"step": step, "reward": None, "gate": "open"})
        writer.write("validation", {"step": step, "accuracy": 0.5})
        writer.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("step", 0),
        ("validation", 0),
        ("step", 1),
        ("validation", 1),
    ]
    assert lines[0]["reward"] is None


def test_the_parts_of_rewards_are_averaged_over_all_rollouts_of_the_step() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.finish_next(2.0, -40.0, parts={"right": (1.0, 0.0), "length": (-1.0, -3.0)})
    run.finish_next(1.0, 0.0, parts={"right": (1.0, 0.0)})
    run.close()
    record = only(run.it.take())
    assert record.unfiltered_reward == (2.0 - 40.0 + 1.0) / 4
    assert record.reward_parts == {"right": 0.5, "length": -1.0}
    assert record.as_json()["reward_parts"] == record.reward_parts
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.close()
    assert only(run.it.take()).reward_parts == {}


def test_numbers_are_flattened_and_text_and_none_left_out() -> None:
    record = {"step": 3, "kl": None, "gate": "open", "worker_idle_share": {"a": 0.25}, "ready": 2}
    assert dict(scalars(record)) == {"step": 3.0, "worker_idle_share/a": 0.25, "ready": 2.0}


def test_prometheus_serves_the_latest_values_on_the_loopback() -> None:
    writer = PrometheusWriter(0)
    try:
        writer.write("step", {"step": 1, "reward": 0.25, "worker_idle_share": {"worker-0": 0.5}})
        writer.write("step", {"step": 2, "reward": 0.75, "worker_idle_share": {"worker-0": 0.25}})
        writer.write("validation", {"step": 2, "accuracy": 0.5, "reward_parts": {"length": -3.5}})
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=10) as answer:
            served = answer.read().decode()
        assert writer._server.server_address[0] == "127.0.0.1"
    finally:
        writer.close()
    assert "evenstep_step 2.0" in served
    assert "evenstep_step_reward 0.75" in served
    assert 'evenstep_step_worker_idle_share{name="worker-0"} 0.25' in served
    assert "evenstep_validation_accuracy 0.5" in served
    assert 'evenstep_validation_reward_parts{name="length"} -3.5' in served


def test_prometheus_serves_the_sets_of_a_validation_under_one_name() -> None:
    writer = PrometheusWriter(0)
    try:
        for name, accuracy in (("maths", 0.75), ("code", 0.25)):
            writer.write("validation", {"step": 2, "set": name, "accuracy": accuracy, "pass_at_k": {"8": 0.875}})
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=10) as answer:
            served = answer.read().decode()
    finally:
        writer.close()
    assert 'evenstep_validation_accuracy{set="maths"} 0.75' in served
    assert 'evenstep_validation_accuracy{set="code"} 0.25' in served
    assert 'evenstep_validation_pass_at_k{name="8",set="maths"} 0.875' in served


@pytest.mark.parametrize(
    ("module", "asked", "package"),
    [
        ("torch.utils.tensorboard", {"tensorboard": True}, "tensorboard"),
        ("prometheus_client", {"prometheus_port": 0}, "prometheus-client"),
        ("wandb", {"wandb_project": "p"}, "wandb"),
    ],
)
def test_a_backend_that_is_not_installed_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, asked: dict[str, Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MetricsBackendMissing, match=f"pip install {package}"):
        open_writers(tmp_path, config={}, **asked)
    assert not (tmp_path / METRICS_FILE).exists()


def test_a_backend_that_is_not_installed_is_missed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.metrics.writers.find_spec", lambda _: None)
    settings = load_settings(None, ["logger.wandb_project=p"])
    with pytest.raises(ConfigError, match="pip install wandb"):
        check_run(settings, tmp_path / "run", resume=False)


def test_wandb_that_is_not_logged_in_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Exception):
        pass

    def init(**_: Any) -> None:
        raise Refused("No API key configured.")

    wandb_module = types.ModuleType("wandb")
    monkeypatch.setattr(wandb_module, "Error", Refused, raising=False)
    monkeypatch.setattr(wandb_module, "init", init, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb_module)
    with pytest.raises(MetricsBackendMissing, match=r"No API key.*WANDB_MODE=offline"):
        open_writers(tmp_path, config={}, wandb_project="p")


class Called:
    """Stands in for a backend: remembers what it is called with."""

    def __init__(self, calls: list[Any], *given: Any, **named: Any) -> None:
        self.calls = calls
        calls.append((given, named))

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, given, named))


def test_tensorboard_and_wandb_are_given_every_number_under_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board: list[Any] = []
    wandb: list[Any] = []
    tensorboard_module, wandb_module = types.ModuleType("torch.utils.tensorboard"), types.ModuleType("wandb")
    monkeypatch.setattr(tensorboard_module, "SummaryWriter", lambda **named: Called(board, **named), raising=False)
    monkeypatch.setattr(wandb_module, "init", lambda **named: Called(wandb, **named), raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard_module)
    monkeypatch.setitem(sys.modules, "wandb", wandb_module)
    writers = open_writers(tmp_path, config={"seed": 1}, tensorboard=True, wandb_project="p", run_name="r")
    for writer in writers:
        writer.write("step", {"step": 4, "reward": 0.5, "reward_parts": {"length": -0.25}})
        writer.write("validation", {"step": 4, "set": "maths", "accuracy": 0.75})
    close_writers(writers)
    assert board[1:] == [
        ("add_scalar", ("step/reward", 0.5), {"global_step": 4}),
        ("add_scalar", ("step/reward/length", -0.25), {"global_step": 4}),
        ("add_scalar", ("validation/maths/accuracy", 0.75), {"global_step": 4}),
        ("close", (), {}),
    ]
    assert wandb[0][1] == {"project": "p", "name": "r", "dir": str(tmp_path), "config": {"seed": 1}}
    assert wandb[2:] == [
        ("log", ({"step": 4, "step/reward": 0.5, "step/reward/length": -0.25},), {}),
        ("log", ({"step": 4, "validation/maths/accuracy": 0.75},), {}),
        ("finish", (), {}),
    ]


def test_a_name_that_no_encoding_has_ends_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board: list[Any] = []
    module = types.ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(module, "SummaryWriter", lambda **named: Called(board, **named), raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    writers = open_writers(tmp_path, config={}, tensorboard=True, prometheus_port=0)
    for writer in writers:
        writer.write("step", {"step": 4, "reward_parts": {"a\ud800": 1.0}})
        writer.write("validation", {"step": 4, "set": "b\ud800", "accuracy": 0.5})
    [prometheus] = [writer for writer in writers if isinstance(writer, PrometheusWriter)]
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/metrics") as answer:
        assert b"d800" in answer.read()
    close_writers(writers)
    assert [given[0] for _, given, _ in board[1:-1]] == [r"step/reward/a\ud800", r"validation/b\ud800/accuracy"]
