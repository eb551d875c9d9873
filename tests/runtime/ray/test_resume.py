"""A run that ended and how it goes on, or is refused: real checkpoints, and a directory that is compared byte by byte.

The tests of this file go on with one run, one after the other, each in a copy of its directory.
"""

import json
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fsm.effects import TrainChunk
from fsm.errors import ConfigError
from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints, load
from runtime.checkpoints.resume import ResumeRequest
from runtime.cli.app import app
from runtime.control.messages import Message, Notice, Outcome
from runtime.files import sha256_of
from runtime.launch.run import InterruptedAtStart, decide_start, run_on_ray
from runtime.output.directory import run_id_of
from runtime.settings import load_settings
from runtime.trace.files import find_trace
from runtime.trace.notes import GroupReceived
from runtime.trace.reader import open_trace
from runtime.trace.records import NoteRecord, TransitionRecord
from runtime.trace.replay import replay
from tests.runtime.ray.helpers import SMALL, adds_up

STEPS, N = 3, 4
RUN = [
    *SMALL,
    "async_rl.sampler={name: ready_first, max_staleness_versions: 1}",
    "warmup.steps=40",
    "data.num_prompts=256",
    "data.validation_size=0",
    "checkpointing.enabled=true",
    "checkpointing.every_steps=1",
    "trace.flush_interval_s=0.1",
]


def tree(root: Path) -> dict[str, str]:
    """Every path below `root`, with a hash of what a file holds."""
    return {
        path.relative_to(root).as_posix(): sha256(path.read_bytes()).hexdigest() if path.is_file() else "a directory"
        for path in sorted(root.rglob("*"))
    }


def start_and_run(
    output: Path, overrides: Sequence[str], resume: ResumeRequest | None, steps: int
) -> tuple[Outcome, list[str]]:
    """What `evenstep train` does, on the session that is there; and what it says."""
    settings = load_settings(None, [*RUN, f"grpo.max_num_steps={steps}", *overrides])
    said: list[str] = []

    def listen(message: Message) -> None:
        if isinstance(message, Notice):
            said.append(message.text)

    start = decide_start(settings, output, resume)
    if start.resume is not None:
        said += start.resume.notices
    return run_on_ray(settings, output, start, listen), said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of three steps with a checkpoint after each, the last two of which are there."""
    output = tmp_path_factory.mktemp("trained") / "run"
    outcome, _ = start_and_run(output, [], None, STEPS)
    assert outcome.status == "completed", outcome.error
    return output


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "run")


def prompts_trained(directory: Path) -> list[int]:
    """Those that the newest trace hands to the trainer."""
    prompts = []
    for record in open_trace(find_trace(directory)).records():
        if isinstance(record, TransitionRecord):
            for effect in record.transition.effects:
                if isinstance(effect, TrainChunk):
                    prompts += [group.prompt for group in effect.groups]
    return prompts


def resumed_steps(outcome: Outcome) -> list[int]:
    assert outcome.status == "completed", outcome.error
    assert adds_up(outcome.balance)
    assert outcome.balance["trained"] == sum(step["selected"] for step in outcome.closed)
    assert outcome.trace is not None
    assert replay(outcome.trace).difference is None
    return [step["step"] for step in outcome.closed]


def initial_model(run: Path) -> dict[str, str]:
    """The model that the run started from, without the one that its end saves."""
    return {name: content for name, content in tree(run / "model").items() if not name.startswith("final")}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--resume", "--set", "data.seed=7"], "data.seed was 0, is 7"),
        (["--resume", "--seed", "7"], "data.seed was 0, is 7"),
        (["--set", "data.task.letters=5", "--resume"], "data.task.letters was 4, is 5"),
        (["--set", "data.num_prompts=255", "--resume"], "data.num_prompts was 256, is 255"),
        (["--set", "data.prompt_template='{prompt} '", "--resume"], "data.prompt_template was '{prompt}', is"),
        (["--set", "data.held_out_fraction=0.2", "--resume"], "data.held_out_fraction was 0.1, is 0.2"),
        (["--resume", "--new-data", "--set", "policy.tiny.width=32"], "policy.tiny.width was 64, is 32"),
        (["--resume", "--set", "policy.train_last_layers=1"], "policy.train_last_layers was None, is 1"),
        (["--resume", "checkpoint-000009-step-00000009"], "there is no such directory"),
        (["--resume", "model"], "it has no manifest.json"),
        (["--resume", "--set", "grpo.num_generations_per_prompt=1"], "evenstep train"),
    ],
)
def test_a_resume_that_is_refused_changes_nothing_and_shows_no_traceback(
    given: list[str], says: str, trained: Path
) -> None:
    before = tree(trained)
    settings = [word for override in RUN for word in ("--set", override)]
    result = CliRunner().invoke(app, ["train", "--output", str(trained), *settings, *given])
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert "Traceback" not in result.output
    assert tree(trained) == before


def test_a_resume_without_a_configuration_takes_the_one_that_the_run_had(trained: Path) -> None:
    """With the default configuration, many keys of the data would differ."""
    result = CliRunner().invoke(app, ["train", "--output", str(trained), "--resume", "--set", "data.seed=7"])
    assert result.exit_code == 2, result.output
    assert "data.seed was 0, is 7" in result.output
    assert "data.task" not in result.output


def test_a_run_that_has_closed_all_its_steps_is_not_started_to_do_nothing(trained: Path) -> None:
    limit = load_settings(None, [*RUN, f"grpo.max_num_steps={STEPS}"])
    with pytest.raises(ConfigError, match=rf"nothing to do: .* has closed {STEPS} steps, .*raise grpo.max_num_steps"):
        decide_start(limit, trained, ResumeRequest())


def test_a_resume_at_the_limit_saves_the_model_that_a_kill_has_cost(run: Path) -> None:
    shutil.rmtree(run / "model" / "final")
    checkpoints = list_checkpoints(run / CHECKPOINTS)
    outcome, _ = start_and_run(run, [], ResumeRequest(), STEPS)
    assert resumed_steps(outcome) == [0, 1, 2]
    assert outcome.model is not None
    assert list_checkpoints(run / CHECKPOINTS) == checkpoints, "none is written of the same step"
    assert outcome.checkpoint == checkpoints[0].resolve()


def test_a_resume_that_is_refused_or_interrupted_on_ray_changes_nothing_either(trained: Path) -> None:
    before = tree(trained)
    too_short = load_settings(None, [*RUN, "data.validation_size=16", "generation.max_prompt_tokens=3"])
    with pytest.raises(ConfigError, match="prompts of validation are longer"):
        run_on_ray(too_short, trained, decide_start(too_short, trained, ResumeRequest()), lambda message: None)
    assert tree(trained) == before

    def interrupt(message: Message) -> None:
        if isinstance(message, Notice) and message.text.startswith("loading the model"):
            raise KeyboardInterrupt

    slower = load_settings(None, [*RUN, "optimizer.lr=1e-5"])
    with pytest.raises(InterruptedAtStart):
        run_on_ray(slower, trained, decide_start(slower, trained, ResumeRequest()), interrupt)
    assert tree(trained) == before


def test_a_resume_goes_on_past_torn_checkpoints_and_names_each(run: Path) -> None:
    newest, older = list_checkpoints(run / CHECKPOINTS)
    (newest / "control.json").write_bytes(b"")
    initial, config = initial_model(run), (run / "config.yaml").read_text()
    outcome, said = start_and_run(run, ["optimizer.lr=1e-4", "checkpointing.keep=9"], ResumeRequest(), STEPS + 1)
    assert f"checkpoint {newest.name} is skipped: control.json has 0 bytes of" in " ".join(said)
    assert f"resuming from {older.resolve()}, after {STEPS - 1} steps" in said
    assert resumed_steps(outcome) == [0, 1, 2, 3]
    assert initial_model(run) == initial
    changed = (
        ("lr: 0.0003", "lr: 0.0001"),
        (f"max_num_steps: {STEPS}", f"max_num_steps: {STEPS + 1}"),
        ("keep: 2", "keep: 9"),
    )
    for before, after in changed:
        assert config.count(f"{before}\n") == 1
        config = config.replace(f"{before}\n", f"{after}\n")
    assert (run / "config.yaml").read_text() == config
    assert outcome.checkpoint is not None
    origin = load(outcome.checkpoint).origin
    assert origin is not None
    assert origin.run == run_id_of(run)
    # Once more from the same checkpoint, as after a crash before the next: an incarnation, and a trace, of its own.
    outcome, _ = start_and_run(run, [], ResumeRequest(older.name), STEPS)
    assert resumed_steps(outcome) == [0, 1, 2]
    assert sorted(path.name for path in run.glob("trace*.jsonl")) == ["trace-1.jsonl", "trace-2.jsonl", "trace.jsonl"]


def test_another_number_of_generations_is_what_steps_are_made_of_from_then_on(run: Path) -> None:
    outcome, said = start_and_run(run, ["grpo.num_generations_per_prompt=4"], ResumeRequest(), STEPS + 2)
    assert any("num_generations_per_prompt 8, now 4" in text and "generated again" in text for text in said)
    assert resumed_steps(outcome) == [0, 1, 2, 3, 4]
    records = [record for record in open_trace(find_trace(run)).records() if isinstance(record, NoteRecord)]
    received = {
        record.note.prompt: record.note.rollouts for record in records if isinstance(record.note, GroupReceived)
    }
    assert set(received.values()) == {4}
    assert set(prompts_trained(run)) <= received.keys()


def test_other_data_is_read_from_its_start_and_a_later_resume_goes_on_in_it(run: Path) -> None:
    control = load(list_checkpoints(run / CHECKPOINTS)[0]).control
    first = control["state"]["source"][2]
    data = ["data.seed=7", "data.num_prompts=64"]
    outcome, said = start_and_run(run, data, ResumeRequest(accepts_other_data=True), STEPS + 2)
    assert any(f"read from its start, as prompts {first} and up (C3)" in text for text in said)
    assert resumed_steps(outcome) == [0, 1, 2, 3, 4]
    prompts = prompts_trained(run)
    assert len(prompts) == 2 * N
    assert min(prompts) >= first
    outcome, said = start_and_run(run, data, ResumeRequest(accepts_other_data=True), STEPS + 3)
    assert "--new-data: the data is the checkpoint's, so the run continues with it" in said
    assert resumed_steps(outcome) == [0, 1, 2, 3, 4, 5]
    assert not set(prompts) & set(prompts_trained(run))


def test_a_run_whose_initial_model_is_gone_has_it_made_again(run: Path) -> None:
    before = initial_model(run)
    shutil.rmtree(run / "model")
    outcome, _ = start_and_run(run, [], ResumeRequest(), STEPS + 1)
    assert resumed_steps(outcome) == [0, 1, 2, 3]
    assert initial_model(run) == before


def without_origin(path: Path) -> None:
    """As an evenstep wrote it that noted neither run, data and model nor the size of groups."""
    for name, keys in (("state.json", ["origin"]), ("control.json", ["num_generations_per_prompt", "first_prompt"])):
        part = json.loads((path / name).read_text())
        for key in keys:
            del part[key]
        (path / name).write_text(json.dumps(part))
    manifest = json.loads((path / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        entry.update(bytes=(path / name).stat().st_size, sha256=sha256_of(path / name))
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_a_run_of_before_there_were_ids_goes_on_and_says_what_could_not_be_compared(run: Path) -> None:
    for path in (run / "model" / "initial").iterdir():
        path.rename(run / "model" / path.name)
    (run / "model" / "initial").rmdir()
    (run / "run.json").unlink()
    for path in list_checkpoints(run / CHECKPOINTS):
        without_origin(path)
    model = initial_model(run)
    outcome, said = start_and_run(run, [], ResumeRequest(), STEPS + 1)
    assert any("does not say which run, data and model it is of: they could not be compared" in text for text in said)
    assert resumed_steps(outcome) == [0, 1, 2, 3]
    assert initial_model(run) == model
    assert outcome.checkpoint is not None
    origin = load(outcome.checkpoint).origin
    assert origin is not None
    assert origin.run == run_id_of(run)
