"""Seeded runs with faults: what a seed draws, one real run, and what the document says. `make chaos` runs fifty."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.launch.supervision.roles import Role
from runtime.settings import load_settings
from tests.chaos.live import Phase
from tests.chaos.plan import PROCESSES, STEPS, Decoding, Harm, Moment, Plan, Shape, Strike, drawn
from tests.chaos.seeds import document
from tests.chaos.trial import References, Trial, tried
from tests.runtime.ends.helpers import SMALL
from tests.runtime.ray.helpers import made_model

SHAPE = Shape(Decoding.GREEDY, "in_order", lag=0, groups=2, workers=1, every_steps=2, seed=0)


def test_a_seed_draws_the_same_plan_again_and_fifty_meet_every_harm_of_every_process() -> None:
    plans = [drawn(seed) for seed in range(50)]
    assert plans == [drawn(seed) for seed in range(50)]
    struck = {(strike.harm, strike.process) for plan in plans for strike in plan.strikes}
    assert struck >= {(harm, process) for harm in (Harm.KILL, Harm.STOP, Harm.PAUSE) for process in PROCESSES}
    assert {harm for harm, _ in struck} == set(Harm)
    assert {strike.moment.phase for plan in plans for strike in plan.strikes} > {Phase.SYNC, Phase.CHECKPOINT, None}
    assert sum(plan.shape.is_exact for plan in plans) >= 25
    assert {plan.shape.sampler for plan in plans} == {"in_order", "ready_first", "windowed", "weight_fifo"}
    for plan in plans:
        given = plan.shape.overrides(Path("model"))
        load_settings(None, [*SMALL, *(f"{key}={value}" for key, value in given.items())])


def test_a_run_with_a_damaged_checkpoint_and_a_killed_trainer_ends_right(tmp_path: Path) -> None:
    """`make chaos` compares weights, which takes an undisturbed run too."""
    plan = Plan(
        0,
        replace(SHAPE, sampler="ready_first", lag=1, decoding=Decoding.FREE),
        (Strike(Harm.TEAR, Role.TRAINER, Moment(4, 0.0, None), seconds=0.0),),
    )
    trial = tried(plan, tmp_path, References(tmp_path, made_model(tmp_path / "model")))
    assert trial.wrong == []
    assert (trial.status, trial.steps, trial.restarts, trial.resumes) == ("completed", STEPS, 1, 0)
    assert trial.met == [True]


@pytest.mark.parametrize("wrong", ["hangs", "the weights are not those of an undisturbed run"])
def test_the_document_shows_what_went_wrong_in_bold_and_counts_it(wrong: str) -> None:
    good = Trial(
        seed=0,
        shape=str(SHAPE),
        harms=[Harm.KILL, Harm.FULL],
        strikes=["kill -9 the GCS, 0.3 s after step 2", "full disk for 2.0 s, in sync after step 4"],
        met=[True, False],
        status="completed",
        reason="",
        steps=STEPS,
        restarts=1,
        resumes=0,
        took_s=31.4,
        weights="equal",
        wrong=[],
    )
    text = document([good, replace(good, seed=1, wrong=[wrong], weights="different", resumes=2)])
    assert "2 runs: 2 completed, 1 of them without a `--resume`. Of the 2\nwhose weights were compared, 1 are" in text
    assert "1 went wrong." in text
    assert "| kill -9 | 2 | 2 | 2 | 2 |" in text
    assert "| full disk | 2 | 0 | 2 | 2 |" in text
    [row] = [line for line in text.splitlines() if line.startswith("| 1 |")]
    assert f"| completed; **{wrong}** | 1 | 2 | different | 31 |" in row
    assert "**" not in text.split("| 0 |")[-1].splitlines()[0]
