"""C3, C4: which checkpoint a resume takes, what it passes over, and what it refuses by name, before anything starts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import runtime.launch.run
from fsm.core import Core
from fsm.errors import ConfigError
from fsm.events import Begin
from fsm.snapshot import restore
from runtime.checkpoints.resume import NEWEST, ResumePoint, ResumeRequest, find_resume_point
from runtime.cli.app import app
from runtime.launch.preflight import output_problems
from runtime.output.directory import alone_in, begun_in, run_id_of, starting_in, write_run_id
from runtime.settings import load_settings
from runtime.trace.files import next_incarnation
from specs.scenarios.world import World
from tests.runtime.checkpoints.helpers import ORIGIN, rewrite_manifest, save_world, world_at

ANY = ResumeRequest()
DATA = ["data.task={name: jsonl, path: asks.jsonl}"]
OTHER_DATA = replace(ORIGIN, data={**ORIGIN.data, "data.seed": 7})
OTHER_MODEL = replace(ORIGIN, model={"policy.model_name": "smollm2"})
OTHER_RUN = replace(ORIGIN, run="fedcba9876543210")


@pytest.fixture(scope="module")
def worlds() -> dict[int, World]:
    return {step: world_at(step) for step in (1, 2)}


@pytest.fixture
def output(tmp_path: Path, worlds: dict[int, World]) -> Path:
    """The directory of a run with two checkpoints, of steps 1 and 2."""
    directory = tmp_path / "run"
    directory.mkdir()
    write_run_id(directory, ORIGIN.run)
    for world in worlds.values():
        save_world(directory / "checkpoints", world)
    return directory


def checkpoints(output: Path) -> list[Path]:
    """The newest first."""
    return sorted((output / "checkpoints").iterdir(), reverse=True)


def find(output: Path, request: ResumeRequest = ANY, here: Any = ORIGIN) -> ResumePoint:
    return find_resume_point(output, request, here, world_at(1).setup, load_settings(None, DATA).data)


def refused(output: Path, request: ResumeRequest = ANY, here: Any = ORIGIN) -> str:
    """Why; and that the directory is as it was."""
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as error:
        find(output, request, here)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    assert str(error.value).startswith("the run cannot start")
    return str(error.value)


# Which one


def test_the_newest_whole_checkpoint_is_taken_without_a_word(output: Path) -> None:
    point = find(output)
    assert point.checkpoint == checkpoints(output)[0].resolve()
    assert point.notices == ()
    assert point.origin == ORIGIN


@pytest.mark.parametrize("part", ["manifest.json", "control.json", "groups.safetensors", "trainer/model.safetensors"])
@pytest.mark.parametrize("damage", ["emptied", "gone", "cut"])
def test_a_torn_one_is_passed_over_and_named_with_the_reason(output: Path, part: str, damage: str) -> None:
    newest, older = checkpoints(output)
    file = newest / part
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "emptied" else file.read_bytes()[: file.stat().st_size // 2])
    point = find(output)
    assert point.checkpoint == older.resolve()
    [notice] = point.notices
    assert notice.startswith(f"checkpoint {newest.name} is skipped: ")
    assert part in notice


def test_a_torn_one_that_is_insisted_on_is_refused(output: Path) -> None:
    newest, _ = checkpoints(output)
    (newest / "control.json").write_bytes(b"")
    for given in (newest.name, str(newest), f"checkpoints/{newest.name}"):
        why = refused(output, ResumeRequest(given))
        assert f"{newest}: control.json has 0 bytes of" in why
        assert "Leave its name out" in why


def test_one_that_is_insisted_on_is_taken_though_a_newer_one_is_there(output: Path) -> None:
    _, older = checkpoints(output)
    for given in (older.name, str(older), f"checkpoints/{older.name}"):
        assert find(output, ResumeRequest(given)).checkpoint == older.resolve()


def test_where_all_are_torn_each_is_named(output: Path) -> None:
    for path in checkpoints(output):
        (path / "manifest.json").unlink()
    why = refused(output)
    assert "none of the 2 checkpoints" in why
    assert all(f"{path.name}: it has no manifest.json" in why for path in checkpoints(output))


def test_where_there_is_none_or_no_such_one_what_is_there_is_said(output: Path, tmp_path: Path) -> None:
    why = refused(output, ResumeRequest("checkpoint-000009-step-00000009"))
    assert "there is no such directory" in why
    assert ", ".join(path.name for path in checkpoints(output)) in why
    why = refused(tmp_path / "empty")
    assert "holds no checkpoint" in why
    assert "checkpointing.enabled" in why


def test_one_of_another_format_is_refused_and_not_passed_over(output: Path) -> None:
    manifest = checkpoints(output)[0] / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": "evenstep checkpoint 9"}))
    assert "'evenstep checkpoint 9'" in refused(output)


def test_a_snapshot_that_the_core_refuses_is_refused_with_the_checkpoints_name(output: Path) -> None:
    newest, _ = checkpoints(output)
    control = json.loads((newest / "control.json").read_text())
    (newest / "control.json").write_text(json.dumps({**control, "format": 99}))
    rewrite_manifest(newest)
    why = refused(output)
    assert newest.name in why
    assert "format 99" in why


# C4: another run's


def test_a_checkpoint_of_another_run_is_refused_with_both_ids(output: Path, worlds: dict[int, World]) -> None:
    foreign = save_world(output / "checkpoints", worlds[1], origin=OTHER_RUN)
    why = refused(output)
    assert foreign.name in why
    assert f"it is of run {OTHER_RUN.run}, and {output} is the directory of run {ORIGIN.run}" in why
    assert find(output, ResumeRequest(checkpoints(output)[1].name)).origin.run == ORIGIN.run


def test_a_checkpoint_from_elsewhere_is_taken_where_it_is_of_this_run(
    output: Path, tmp_path: Path, worlds: dict[int, World]
) -> None:
    own = save_world(tmp_path / "copies", worlds[1])
    foreign = save_world(tmp_path / "others", worlds[1], origin=OTHER_RUN)
    assert find(output, ResumeRequest(str(own))).checkpoint == own.resolve()
    assert "it is of run" in refused(output, ResumeRequest(str(foreign)))
    (output / "run.json").unlink()
    assert "has no run.json" in refused(output, ResumeRequest(str(own)))


def test_a_directory_without_an_id_is_known_by_its_newest_checkpoint(output: Path) -> None:
    (output / "run.json").unlink()
    assert find(output, here=OTHER_RUN).origin.run == ORIGIN.run


def test_an_id_that_cannot_be_read_is_refused_with_the_file(output: Path) -> None:
    for content in ("", "[]", "{}", "null"):
        (output / "run.json").write_text(content)
        assert f"{output / 'run.json'} does not say which run" in refused(output)


def test_a_checkpoint_without_an_origin_goes_on_and_says_what_could_not_be_compared(output: Path) -> None:
    newest, _ = checkpoints(output)
    state = json.loads((newest / "state.json").read_text())
    del state["origin"]
    (newest / "state.json").write_text(json.dumps(state))
    rewrite_manifest(newest)
    point = find(output, here=replace(OTHER_DATA, run="a new id"))
    assert "could not be compared" in point.notices[0]
    assert point.origin == replace(OTHER_DATA, run=ORIGIN.run)
    (output / "run.json").unlink()
    assert find(output, here=replace(OTHER_DATA, run="a new id")).origin.run == "a new id"


def test_a_checkpoint_without_a_group_size_has_it_in_its_groups(output: Path) -> None:
    newest, _ = checkpoints(output)
    control = json.loads((newest / "control.json").read_text())
    del control["num_generations_per_prompt"]
    (newest / "control.json").write_text(json.dumps(control))
    rewrite_manifest(newest)
    groups = json.loads((newest / "groups.json").read_text())["groups"]
    assert find(output).control["num_generations_per_prompt"] == groups[0]["rollouts"]


# C3: other data, another model


def test_other_data_is_refused_with_both_values_and_the_way_to_accept_it(output: Path) -> None:
    why = refused(output, here=OTHER_DATA)
    assert "it was written with other data: data.seed was 0, is 7" in why
    assert "add --new-data" in why


def test_a_file_whose_content_differs_is_named_with_both_hashes_and_what_to_do(output: Path, tmp_path: Path) -> None:
    prompts = "the hash of the prompts"
    why = refused(output, here=replace(ORIGIN, data={**ORIGIN.data, prompts: "fedc" * 4}))
    assert (
        "other data: asks.jsonl (data.task.path): the hash of the prompts and answers was '54f0142466811864', is "
        "'fedcfedcfedcfedc'. Put back what was there, or name its copy; or add --new-data"
    ) in why
    assert "config.yaml" not in why


def test_other_data_that_was_asked_for_drops_what_is_not_trained(output: Path) -> None:
    point = find(output, ResumeRequest(accepts_other_data=True), OTHER_DATA)
    core: Core = restore(world_at(1).setup, point.control)
    trained = core.state.sheet.trained
    assert any(f"its {trained} trained prompts stay" in notice for notice in core.notices)
    core.apply(Begin())
    assert core.state.sheet.trained == trained
    assert min(core.book.roster.in_flight) >= point.control["first_prompt"] > 0
    assert point.origin.data == OTHER_DATA.data


def test_asking_for_other_data_where_it_is_the_same_goes_on_in_it(output: Path) -> None:
    point = find(output, ResumeRequest(accepts_other_data=True))
    assert "the data is the checkpoint's, so the run continues with it" in point.notices[0]
    assert point.control == json.loads((checkpoints(output)[0] / "control.json").read_text())


def test_another_model_is_refused_whatever_was_asked_for(output: Path) -> None:
    for request in (ResumeRequest(), ResumeRequest(accepts_other_data=True)):
        why = refused(output, request, OTHER_MODEL)
        assert "another model: policy.model_name was 'tiny', is 'smollm2'" in why
        assert "--new-data" not in why


# Whose directory it is


def test_a_run_that_is_going_on_is_not_resumed(output: Path) -> None:
    with alone_in(output):
        [problem] = output_problems(output, resume=True)
        assert "is still running: another process has locked its run.json" in problem
        with pytest.raises(ConfigError, match="is still running"), alone_in(output):
            pass
    assert list(output_problems(output, resume=True)) == []


def test_the_id_of_a_run_is_written_once_and_removed_with_a_start_that_came_to_nothing(tmp_path: Path) -> None:
    with starting_in(tmp_path):
        write_run_id(tmp_path, "first")  # and is killed before it begins
    with starting_in(tmp_path) as removed:
        assert removed == ["run.json"]
        write_run_id(tmp_path, "second")
        begun_in(tmp_path)
    write_run_id(tmp_path, "third")
    assert run_id_of(tmp_path) == "second"


def test_every_process_of_a_run_has_an_incarnation_of_its_own(tmp_path: Path) -> None:
    assert next_incarnation(tmp_path, 0) == 1
    for name in ("trace.jsonl", "trace-1.jsonl", "trace-3.jsonl.2.gz"):
        (tmp_path / name).touch()
    assert next_incarnation(tmp_path, 1) == 4
    assert next_incarnation(tmp_path, 5) == 6


# The command


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--output", "D", "--resume"], ResumeRequest(NEWEST)),
        (["--resume", "--output", "D"], ResumeRequest(NEWEST)),
        (["--resume", "run.yaml", "--output", "D"], ResumeRequest(NEWEST)),
        (["run.yaml", "--output", "D", "--resume"], ResumeRequest(NEWEST)),
        (["--resume", "checkpoint-1", "--output", "D"], ResumeRequest("checkpoint-1")),
        (["--output", "D", "--resume", "checkpoint-1", "run.yaml"], ResumeRequest("checkpoint-1")),
        (["--output", "D", "--resume=checkpoint-1"], ResumeRequest("checkpoint-1")),
        (["--output", "D", "--resume", "--new-data"], ResumeRequest(NEWEST, accepts_other_data=True)),
        (["--output", "D"], None),
    ],
)
def test_resume_stands_alone_anywhere_or_names_a_checkpoint(
    words: list[str], asked: ResumeRequest | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("{}")
    heard: list[Any] = []

    def hear(settings: Any, output: Path, *, resume: ResumeRequest | None, listener: Any) -> None:
        heard.extend([output, resume])
        raise ConfigError("heard")

    monkeypatch.setattr(runtime.launch.run, "run_training", hear)
    result = CliRunner().invoke(app, ["train", *words])
    assert result.exit_code == 2, result.output
    assert heard == [Path("D"), asked], result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--resume"], "--resume needs --output"),
        (["--new-data", "--output", "D"], "--new-data needs --resume"),
        (["--resume", "--output", "nowhere"], "there is nothing to resume"),
    ],
)
def test_what_a_resume_lacks_is_told(words: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["train", *words])
    assert result.exit_code == 2
    assert says in result.output


def test_a_resume_whose_kl_reference_is_gone_is_refused(output: Path) -> None:
    settings = load_settings(None, ["loss_fn.reference_policy_kl_penalty=0.1"])
    with pytest.raises(ConfigError, match=r"model/initial is gone, which is the reference of .*penalty = 0\.1"):
        runtime.launch.run.decide_start(settings, output, ResumeRequest())
