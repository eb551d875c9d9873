"""The picture of a run is drawn from metrics.jsonl alone."""

import json
from pathlib import Path

import pytest
from matplotlib.image import imread

from runtime.files import FileNotWritten
from runtime.metrics.plot import plot_run, read_curves, running_mean


def write(path: Path, records: list[dict[str, object]], torn: str = "") -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + torn)
    return path


def step(number: int, reward: float | None, zero_variance: float | None = 0.5) -> dict[str, object]:
    return {
        "kind": "step",
        "step": number,
        "time_s": number * 0.5,
        "reward": 0.5,
        "unfiltered_reward": reward,
        "zero_variance_fraction": zero_variance,
    }


def test_reward_is_that_before_dynamic_sampling_where_it_is_known(tmp_path: Path) -> None:
    metrics = write(
        tmp_path / "metrics.jsonl",
        [
            {"kind": "validation", "step": 0, "time_s": 0.0, "accuracy": 0.1},
            step(0, 0.25),
            step(1, None, None),
            {"kind": "validation", "step": 2, "time_s": 1.0, "accuracy": 0.3},
        ],
        torn='{"kind": "st',
    )
    curves = read_curves(metrics)
    assert curves.reward == ([0, 1], [0.0, 0.5], [0.25, 0.5])
    assert curves.accuracy == ([0, 2], [0.0, 1.0], [0.1, 0.3])
    assert curves.zero_variance == ([0], [0.0], [0.5])


def test_of_several_sets_the_first_is_drawn(tmp_path: Path) -> None:
    sets = [
        {"kind": "validation", "step": number, "time_s": 0.0, "set": name, "accuracy": accuracy}
        for number in (0, 2)
        for name, accuracy in (("greedy", 0.5), ("hard", 0.1))
    ]
    assert read_curves(write(tmp_path / "metrics.jsonl", sets)).accuracy == ([0, 2], [0.0, 0.0], [0.5, 0.5])


def test_a_resumed_run_goes_on_in_time_from_the_step_of_its_checkpoint(tmp_path: Path) -> None:
    before = [step(number, 0.1) for number in range(6)]  # 0 to 2.5 s; the checkpoint was of version 3
    after = [{"kind": "validation", "step": 3, "time_s": 0.1, "accuracy": 0.4}]
    after += [step(number, 0.9) | {"time_s": number - 2.0} for number in range(3, 5)]
    curves = read_curves(write(tmp_path / "metrics.jsonl", [*before, *after]))
    assert curves.reward == ([0, 1, 2, 3, 4], [0.0, 0.5, 1.0, 3.5, 4.5], [0.1, 0.1, 0.1, 0.9, 0.9])
    assert curves.accuracy == ([3], [2.6], [0.4])


def test_a_process_that_trained_longer_than_the_one_before_it_is_told_by_its_incarnation(tmp_path: Path) -> None:
    before = [step(number, 0.1) | {"incarnation": 0} for number in range(3)]  # 0 to 1 s
    after = [step(number, 0.9) | {"incarnation": 1, "time_s": float(number)} for number in range(1, 4)]
    curves = read_curves(write(tmp_path / "metrics.jsonl", [*before, *after]))
    assert curves.reward == ([0, 1, 2, 3], [0.0, 2.0, 3.0, 4.0], [0.1, 0.9, 0.9, 0.9])


@pytest.mark.parametrize("steps", [1, 3, 400])
def test_a_run_of_any_length_becomes_a_picture(tmp_path: Path, steps: int) -> None:
    records = [step(number, number / steps) for number in range(steps)]
    metrics = write(tmp_path / "metrics.jsonl", records)
    picture = plot_run(metrics, tmp_path / "new" / "plot.png", title="reverse, seed 0")
    pixels = imread(picture)
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 1000
    blue = (abs(pixels[..., :3] - [0, 0.447, 0.698]).sum(axis=2) < 0.05).sum()
    assert blue > 20


def test_rewards_below_zero_and_no_accuracy_are_drawn_too(tmp_path: Path) -> None:
    metrics = write(tmp_path / "metrics.jsonl", [step(0, -1.0), step(1, 2.5, None)])
    assert plot_run(metrics, tmp_path / "plot.png").stat().st_size > 5000


def test_large_rewards_have_an_axis_of_their_own_so_that_accuracy_can_be_read(tmp_path: Path) -> None:
    validations = [{"kind": "validation", "step": n, "time_s": 0.5 * n, "accuracy": n / 8} for n in range(8)]
    records = [step(number, 1000.0 * number) for number in range(8)]
    lines = [line for pair in zip(validations, records, strict=True) for line in pair]
    picture = plot_run(write(tmp_path / "metrics.jsonl", lines), tmp_path / "plot.png")
    pixels = imread(picture)[..., :3]
    orange = abs(pixels - [0.835, 0.369, 0.0]).sum(axis=2) < 0.05
    rows = orange[:, : pixels.shape[1] // 2].any(axis=1).nonzero()[0]
    assert rows.max() - rows.min() > pixels.shape[0] / 3


def test_a_run_without_a_step_has_no_picture(tmp_path: Path) -> None:
    metrics = write(tmp_path / "metrics.jsonl", [{"kind": "validation", "step": 0, "time_s": 0.0, "accuracy": 0.1}])
    with pytest.raises(FileNotWritten, match="has no step to draw"):
        plot_run(metrics, tmp_path / "plot.png")


def test_a_running_mean_keeps_length_and_level() -> None:
    assert running_mean([1.0] * 7, 4) == [1.0] * 7
    assert running_mean([0.0, 3.0, 6.0], 2) == [1.5, 3.0, 4.5]
    assert running_mean([0.0, 3.0], 0) == [0.0, 3.0]
