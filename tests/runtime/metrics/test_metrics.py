"""Per-step metrics against numbers worked out by hand."""

import json
import math
from pathlib import Path

import pytest

from fsm.errors import SamplerError
from fsm.events import FailureKind
from runtime.metrics.accumulator import pass_rate
from runtime.training.step_metrics import NotFinite, Number
from tests.runtime.bookkeeping import receipt_of, running_prompts
from tests.runtime.metrics.metered import Metered, only, trainer_metrics, whole_chunks


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


def test_restarts_count_for_the_step_in_which_they_happen_and_workers_serve_until_they_are_lost() -> None:
    run = Metered("ready_first", num_prompts=48, **whole_chunks())
    for worker in ("generation-0", "generation-1"):
        run.it.worker_started(worker)
    run.it.restarted("quarantined")
    run.it.worker_lost("generation-0")
    run.it.restarted("reward")
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.close()
    record = only(run.it.take())
    assert record.restarts == {"generation": 1, "quarantined": 1, "reward": 1, "store": 0}
    assert record.workers_serving == 1
    run.it.worker_started("generation-0")
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.close()
    record = only(run.it.take())
    assert sum(record.restarts.values()) == 0
    assert record.workers_serving == 2


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


def test_the_record_of_a_step_that_was_not_applied_says_why_and_is_json_that_any_reader_takes() -> None:
    run = Metered("ready_first", **whole_chunks())
    run.finish_next(1.0, 0.0)
    run.finish_next(1.0, 0.0)
    run.world.chunk_trained()
    cause = NotFinite(Number.LOSS, 2, (0, 1), (5,))
    run.it.trained(trainer_metrics(1, loss=math.nan, grad_norm=math.inf, not_finite=cause))
    run.world.step_finished()
    run.world.weights_synced()
    record = only(run.it.take())
    assert record.not_finite == "the loss of prompt 5 in microbatch 2 on trainer ranks 0, 1"
    assert (record.loss, record.grad_norm, record.lr) == (None, None, 3e-4)
    json.dumps(record.as_json(), allow_nan=False)


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
