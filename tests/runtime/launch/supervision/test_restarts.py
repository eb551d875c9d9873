"""Which ends of an attempt are worth another one, from where it starts, and that all of them are one run.

The attempts are scripted; the checkpoints are real. `tests/chaos` has the same on Ray, with processes that are killed.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm.errors import ConfigError
from runtime.checkpoints.checkpoint import CHECKPOINTS, load
from runtime.checkpoints.resume import ResumePoint
from runtime.cli.app import app
from runtime.control.failures import InterruptedAtStart, RunFailed
from runtime.control.messages import Listener, Message, Notice, Outcome, Start, StepDone, ValidationDone
from runtime.files import sha256_of
from runtime.launch.signals import interrupts_by_signals
from runtime.launch.supervision import restarts
from runtime.launch.supervision.attempt import AttemptEnd
from runtime.launch.supervision.ray_client import Assignment
from runtime.launch.supervision.restarts import run_until_it_ends
from runtime.output.directory import resume_problems, write_run_id
from runtime.settings import load_settings
from runtime.trace.notes import RunEnded
from tests.runtime.checkpoints.helpers import ORIGIN, save_world, world_at
from tests.runtime.explain.helpers import config_of, recording

DIED = "actor run-trainer-0 died: connection error"
Attempted = Callable[[Listener], AttemptEnd]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "WAIT_S", 0.0)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    write_run_id(directory, ORIGIN.run)
    return directory


@dataclass
class Told:
    """What a run said and did."""

    texts: list[str] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    def hear(self, message: Message) -> None:
        if isinstance(message, Notice):
            self.texts.append(message.text)


def go(
    output: Path,
    told: Told,
    *attempts: Attempted,
    start: Start | None = None,
    most: int = 3,
    overrides: Sequence[str] = (),
) -> Outcome:
    """A run whose attempts end as given; every one of them must be made."""
    left: Iterator[Attempted] = iter(attempts)

    def attempting(task: Assignment, listener: Listener) -> AttemptEnd:
        told.starts.append(task.start)
        return next(left)(listener)

    settings = load_settings(None, [f"cluster.max_run_restarts={most}", *overrides])
    first = start or Start(60, {}, ORIGIN, None)
    try:
        return run_until_it_ends(settings, output, first, None, told.hear, 0.0, attempting)
    finally:
        assert list(left) == []


def dies(*, steps: range = range(0), save: Callable[[], object] = lambda: None, **known: float) -> Attempted:
    """An attempt that closes steps, does something, and loses a process."""

    def attempted(listener: Listener) -> AttemptEnd:
        for step in steps:
            listener(StepDone({"step": step}))
        save()
        closed = [{"step": step} for step in range(steps.stop)]
        return AttemptEnd(Outcome("failed", DIED, closed=closed, infra=True, **known), None, DIED)

    return attempted


def ends(outcome: Outcome) -> Attempted:
    return lambda listener: AttemptEnd(outcome, None, None)


def never_begins(error: RunFailed | ConfigError | InterruptedAtStart, infra: str | None = None) -> Attempted:
    return lambda listener: AttemptEnd(None, error, infra)


COMPLETED = Outcome("completed", None)


def test_a_run_that_lost_a_process_resumes_from_its_newest_whole_checkpoint_and_says_so(output: Path) -> None:
    def save() -> None:
        save_world(output / CHECKPOINTS, world_at(1))
        torn = save_world(output / CHECKPOINTS, world_at(2))
        (torn / "control.json").write_bytes(b"")

    told = Told()
    outcome = go(output, told, dies(steps=range(3), save=save), ends(COMPLETED))
    assert outcome.status == "completed"
    first, second = told.starts
    assert first.resume is None
    assert second.resume is not None
    assert second.resume.checkpoint.name == "checkpoint-000001-step-00000001"
    assert second.resume.control["state"]["trainer"][1] == 1
    skipped, text = told.texts
    assert skipped.startswith("checkpoint checkpoint-000002-step-00000002 is skipped: control.json ")
    for part in ("(1 of at most 3)", DIED, "resumes from checkpoint-000001", "steps 1 to 2 are trained again"):
        assert part in text
    assert outcome.restarts == (
        f"{DIED}; it resumes from checkpoint-000001-step-00000001, and steps 1 to 2 are trained again",
    )


def test_a_run_without_a_checkpoint_starts_from_its_beginning_and_says_what_that_costs(output: Path) -> None:
    told = Told()
    go(output, told, dies(steps=range(2)), ends(COMPLETED))
    assert told.starts[1] == told.starts[0]
    [text] = told.texts
    assert "no checkpoint was written yet, so it starts from the beginning" in text
    assert "steps 0 to 1 are trained again; checkpointing.every_steps" in text


def test_a_run_whose_only_checkpoint_is_damaged_says_that_and_not_that_there_was_none(output: Path) -> None:
    def save() -> None:
        (save_world(output / CHECKPOINTS, world_at(1)) / "state.json").unlink()

    told = Told()
    go(output, told, dies(steps=range(2), save=save), ends(COMPLETED))
    assert told.starts[1] == told.starts[0]
    skipped, text = told.texts
    assert skipped.startswith("checkpoint checkpoint-000001-step-00000001 is skipped: ")
    assert "state.json" in skipped
    assert "none of its checkpoints is whole, so it starts from the beginning" in text


def test_a_checkpoint_that_is_deleted_after_it_was_named_is_passed_over_and_another_one_named(output: Path) -> None:
    def save() -> None:
        save_world(output / CHECKPOINTS, world_at(1))
        save_world(output / CHECKPOINTS, world_at(2))

    class Meddling(Told):
        def hear(self, message: Message) -> None:
            super().hear(message)
            if isinstance(message, Notice) and "it resumes from checkpoint-000002" in message.text:
                shutil.rmtree(output / CHECKPOINTS / "checkpoint-000002-step-00000002")

    told = Meddling()
    outcome = go(output, told, dies(steps=range(3), save=save), ends(COMPLETED))
    assert told.starts[1].resume is not None
    assert told.starts[1].resume.checkpoint.name == "checkpoint-000001-step-00000001"
    _, skipped, instead = told.texts
    assert skipped == "checkpoint checkpoint-000002-step-00000002 is skipped: there is no such directory"
    resumes = "it resumes from checkpoint-000001-step-00000001, and steps 1 to 2 are trained again"
    assert instead == f"instead {resumes}"
    assert outcome.restarts == (f"{DIED}; {resumes}",)


@pytest.mark.parametrize("when", ["before Ray is started", "while Ray is started"])
def test_a_run_whose_last_checkpoint_is_deleted_ends_and_does_not_begin_again(output: Path, when: str) -> None:
    named = output / CHECKPOINTS / "checkpoint-000001-step-00000001"

    class Meddling(Told):
        def hear(self, message: Message) -> None:
            super().hear(message)
            if when.startswith("before") and isinstance(message, Notice) and "it resumes from" in message.text:
                shutil.rmtree(named)

    def finds_it_gone(listener: Listener) -> AttemptEnd:
        shutil.rmtree(named)
        return AttemptEnd(None, RunFailed(f"checkpoint {named}: there is no such directory"), None)

    attempts = [dies(steps=range(2), save=lambda: save_world(output / CHECKPOINTS, world_at(1)))]
    outcome = go(output, Meddling(), *attempts, *([finds_it_gone] if when.startswith("while") else []))
    assert outcome.status == "failed"
    assert outcome.error is not None
    for part in ("no whole checkpoint left", f"{named.name}: there is no such directory", "Put one back from a copy"):
        assert part in outcome.error


def test_a_checkpoint_that_goes_while_ray_is_started_costs_a_restart_and_not_the_run(output: Path) -> None:
    def save() -> None:
        save_world(output / CHECKPOINTS, world_at(1))
        save_world(output / CHECKPOINTS, world_at(2))

    def finds_it_gone(listener: Listener) -> AttemptEnd:
        (output / CHECKPOINTS / "checkpoint-000002-step-00000002" / "manifest.json").unlink()
        return AttemptEnd(None, RunFailed("checkpoint checkpoint-000002-step-00000002: it has no manifest.json"), None)

    told = Told()
    outcome = go(output, told, dies(steps=range(3), save=save), finds_it_gone, ends(COMPLETED))
    assert outcome.status == "completed"
    assert [start.resume and start.resume.checkpoint.name[:17] for start in told.starts[1:]] == [
        "checkpoint-000002", "checkpoint-000001",
    ]  # fmt: skip
    assert "(2 of at most 3): checkpoint checkpoint-000002-step-00000002 cannot be loaded: it has" in told.texts[2]


def test_a_run_that_was_resumed_from_a_checkpoint_that_is_gone_since_ends_with_its_name(output: Path) -> None:
    path = save_world(output / CHECKPOINTS, world_at(2))
    point = ResumePoint(path, load(path).control, ORIGIN, ())
    outcome = go(output, Told(), dies(steps=range(2, 3), save=lambda: shutil.rmtree(path)),
                 start=Start(60, {}, ORIGIN, point))  # fmt: skip
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert f"no whole checkpoint left ({path.name}: there is no such directory)" in outcome.error


def test_a_checkpoint_that_was_there_before_is_not_mistaken_for_one_of_this_run(output: Path) -> None:
    """A user may resume from an older one by name."""
    save_world(output / CHECKPOINTS, world_at(2))
    told = Told()
    go(output, told, dies(), ends(COMPLETED))
    assert told.starts[1] == told.starts[0]


def test_a_run_is_restarted_as_often_as_is_allowed_and_then_fails_with_its_last_cause(output: Path) -> None:
    told = Told()
    outcome = go(output, told, dies(steps=range(1)), dies(steps=range(2)), dies(steps=range(3)), most=2)
    assert outcome.status == "failed"
    assert outcome.error == f"{DIED}; the run was restarted 2 times, and cluster.max_run_restarts is 2"
    assert len(outcome.closed) == 3
    assert len(outcome.restarts) == 2


def test_a_run_that_may_not_be_restarted_fails_as_it_is(output: Path) -> None:
    outcome = go(output, Told(), dies(steps=range(1)), most=0)
    assert (outcome.status, outcome.error, outcome.restarts) == ("failed", DIED, ())


def test_two_restarts_that_train_no_new_step_are_the_last(output: Path) -> None:
    """Steps that were closed before are no progress."""
    again = dies(steps=range(2))
    outcome = go(output, Told(), again, again, again, most=9)
    assert outcome.error == f"{DIED}; the last 2 restarts trained no new step, so the fault is not a passing one"


def test_progress_makes_restarts_that_were_in_vain_count_no_more(output: Path) -> None:
    vain = dies(steps=range(2))
    outcome = go(output, Told(), vain, vain, dies(steps=range(3)), vain, ends(COMPLETED), most=9)
    assert outcome.status == "completed"
    assert len(outcome.restarts) == 4


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("completed", None),
        Outcome("stopped", "min_step_batch_fraction"),
        Outcome("failed", "InvariantBroken: selected"),
        Outcome("interrupted", None),
    ],
    ids=lambda outcome: outcome.status,
)
def test_an_end_that_is_not_infrastructures_fault_is_the_end(outcome: Outcome, output: Path) -> None:
    assert go(output, Told(), ends(outcome)) == outcome


def test_a_refusal_is_raised_as_it_is(output: Path) -> None:
    with pytest.raises(ConfigError, match="the run cannot start: no GPU"):
        go(output, Told(), never_begins(ConfigError("the run cannot start: no GPU")))


def test_a_run_whose_ray_died_at_the_start_is_started_again(output: Path) -> None:
    lost = RunFailed("the raylet died", infra=True)
    assert go(output, Told(), never_begins(lost, str(lost)), ends(COMPLETED)).status == "completed"
    with pytest.raises(RunFailed, match="the raylet died; the run was restarted 1 time"):
        go(output, Told(), never_begins(lost, str(lost)), never_begins(lost, str(lost)), most=1)


def test_all_attempts_are_one_run(output: Path) -> None:
    def measures(accuracy: float, then: Attempted) -> Attempted:
        def attempted(listener: Listener) -> AttemptEnd:
            listener(ValidationDone(0, "validation", accuracy))
            return then(listener)

        return attempted

    last = Outcome(
        "completed", None, accuracy_by_set={"validation": {"before": 0.5, "after": 0.9}}, rl_s=2.0, worker_restarts=1
    )
    first = dies(steps=range(1), rl_s=1.5, worker_restarts=2, late_answers=3)
    outcome = go(output, Told(), measures(0.25, first), measures(0.5, ends(last)))
    assert outcome.accuracy_by_set == {"validation": {"before": 0.25, "after": 0.9}}
    assert (outcome.rl_s, outcome.worker_restarts, outcome.late_answers) == (3.5, 3, 3)


def test_what_was_trained_is_told_although_the_restarted_run_cannot_begin(output: Path) -> None:
    gone = ConfigError("the run cannot start: cluster.address is 10.0.0.1:6379, and no Ray cluster can be joined there")
    outcome = go(output, Told(), dies(steps=range(2)), never_begins(gone))
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert "no Ray cluster can be joined" in outcome.error
    assert len(outcome.closed) == 2


@pytest.mark.parametrize(("when", "name"), [("between", "SIGTERM"), ("between", "SIGINT"), ("within", "SIGTERM")])
def test_an_interrupt_of_a_restart_ends_the_run_and_explain_says_the_same(output: Path, when: str, name: str) -> None:
    class Impatient(Told):
        def hear(self, message: Message) -> None:
            if when == "between" and isinstance(message, Notice) and "restarted" in message.text:
                os.kill(os.getpid(), signal.Signals[name])

    failed_run(output)
    assert invoked("explain", str(output)) == (1, "failed")
    unbegun = AttemptEnd(None, InterruptedAtStart(), None, interrupted_by=name)
    with interrupts_by_signals():
        attempts = [dies(steps=range(2)), lambda _: unbegun][: 1 if when == "between" else 2]
        outcome = go(output, Impatient(), *attempts)
    assert (outcome.status, outcome.error) == ("interrupted", f"{name} came while the run was restarted")
    assert len(outcome.closed) == 2
    assert invoked("explain", str(output)) == (130, "interrupted")
    said = CliRunner().invoke(app, ["explain", str(output)]).output
    assert f"the run was interrupted after 1 step: {name} came while the run was restarted" in said
    assert f"evenstep train --output {output} --resume" in said or "start it again in another directory" in said
    (output / "trace.jsonl").rename(output / "trace-1.jsonl")  # of a resume
    assert invoked("explain", str(output)) == (1, "failed")


def failed_run(output: Path) -> None:
    with recording(output / "trace.jsonl", config_of("in_order", 2)) as run:
        run.commit(0, 1)
        run.close()
        run.trace.note(RunEnded("failed", DIED, 1, None, None))


def invoked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments])
    return result.exit_code, result.output.split()[0]


def test_status_says_which_restart_is_under_way_and_forgets_it_with_the_run(output: Path) -> None:
    class Asking(Told):
        def hear(self, message: Message) -> None:
            if isinstance(message, Notice) and "the run is restarted" in message.text:
                self.texts.append(CliRunner().invoke(app, ["status", str(output)]).output)

    (output / "restart.json").write_text('{"restart": 7, "most": 9}')  # a killed process left it
    told = Asking()
    go(output, told, dies(steps=range(1)), dies(steps=range(2)), ends(COMPLETED))
    assert [f"restart {number} of at most 3" in says for number, says in enumerate(told.texts, 1)] == [True, True]
    assert not (output / "restart.json").exists()


def test_steps_whose_messages_died_with_a_process_are_counted_as_metrics_has_them(output: Path) -> None:
    """The driver hears of steps later than the controller writes them."""
    metrics, told = output / "metrics.jsonl", Told()
    metrics.write_text('{"kind": "step", "step": 40}\n', encoding="utf-8")  # of an earlier run, which a resume undid

    def write() -> None:
        with metrics.open("a", encoding="utf-8") as file:
            file.write('{"kind": "step", "step": 8}\n{"kind": "step", "st')

    outcome = go(output, told, dies(steps=range(6), save=write), ends(COMPLETED))
    assert outcome.restarts
    assert "steps 0 to 8 are trained again" in told.texts[0]


def test_a_run_whose_template_was_changed_meanwhile_is_not_restarted(output: Path, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    overrides = ["data.chat=true", f"data.chat_template={template}"]
    origin = replace(ORIGIN, data={**ORIGIN.data, "the hash of the data.chat_template": sha256_of(template)[:16]})
    start = Start(60, {}, origin, None)
    assert go(output, Told(), dies(), ends(COMPLETED), start=start, overrides=overrides).status == "completed"
    change = partial(template.write_text, "other", encoding="utf-8")
    outcome = go(output, Told(), dies(steps=range(2), save=change), start=start, overrides=overrides)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert f"{template} has changed since the run began" in outcome.error


def test_a_directory_whose_run_is_being_restarted_is_not_resumed_by_another_process(output: Path) -> None:
    def look(listener: Listener) -> AttemptEnd:
        [problem] = resume_problems(output)
        assert "is being restarted by another process" in problem
        return AttemptEnd(COMPLETED, None, None)

    assert list(resume_problems(output)) == []
    go(output, Told(), look)
    assert list(resume_problems(output)) == []
