"""A mistaken scenario is told with its file, the move and the reason; the command's exit code says so too."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from runtime.cli.app import app
from specs.scenarios.run import find_scenarios, run_file

CONFIG = (
    "config: {grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2}, "
    "async_rl: {sampler: {name: in_order, max_lookahead_versions: 0}}}"
)
HEAD = f"name: a mistake\n{CONFIG}\ndata: {{num_prompts: 4}}\n"
HOLDS = f"{HEAD}moves:\n  - commit: [0, 1]\n  - close\nexpect: {{version: 1}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "scenario.yaml"


def problem(file: Path, text: str) -> str:
    """What is said of a mistaken file."""
    file.write_text(text, encoding="utf-8")
    verdict = run_file(file)
    assert verdict.path == file
    [said] = verdict.problems
    return said


def of_moves(*moves: str) -> str:
    return HEAD + "moves:\n" + "".join(f"  - {move}\n" for move in moves)


def command(*arguments: Path | str) -> Result:
    return CliRunner().invoke(app, ["scenario", "run", *(str(argument) for argument in arguments)])


class TestAMoveThatIsNoMove:
    @pytest.mark.parametrize(
        ("move", "reason"),
        [
            ("comit: [0]", "comit is not a move; did you mean commit?"),
            ("xyz", "xyz is not a move; known are commit"),
            ("3", "a move is a name, or one name with its value"),
            ("null", "a move is a name, or one name with its value"),
            ("[commit]", "a move is a name, or one name with its value"),
            ("{commit: [0], filter: [1]}", "a move is a name, or one name with its value"),
            ("{1: [0]}", "1 is not a move"),
            ("chunk_trained: 1", "chunk_trained takes no value"),
            ("commit", "list"),
            ("commit: 0", "list"),
            ('commit: ["0"]', "integer"),
            ("commit: [0.5]", "integer"),
            ("commit: [true]", "integer"),
            ("commit: [null]", "integer"),
            ('tick: "5"', "number"),
            ("tick: true", "number"),
            ("tick: 1e5s", "number"),
            ("fail: {prompt: 0, kind: net}", "infra"),
            ("fail: {promt: 0, kind: infra}", "did you mean prompt?"),
            ("fail: [0]", "dictionary"),
            ("expect: {in_fligt: [0]}", "did you mean in_flight?"),
            ("expect: {balance: {traned: 0}}", "did you mean trained?"),
            ("expect: {closed: [{step: 0, selected: 1, charged: 0, shrt: 1}]}", "did you mean short?"),
            ("expect: {status: waiting}", "waiting_for_rollouts"),
            ('expect: {version: "0"}', "integer"),
            ("expect: {in_flight: 0}", "list"),
            ("expect", "dictionary"),
        ],
    )
    def test_is_told_with_its_number_and_why(self, file: Path, move: str, reason: str) -> None:
        said = problem(file, of_moves("hang: [0]", move))
        assert said.startswith("move 2 ")
        assert reason in said

    def test_is_found_before_anything_runs(self, file: Path) -> None:
        assert problem(file, of_moves("commit: [3]", "comit: [0]")).startswith("move 2 ")

    @pytest.mark.parametrize("seconds", ["-1", ".nan", ".inf", "-.inf"])
    def test_a_tick_is_a_duration(self, file: Path, seconds: str) -> None:
        assert problem(file, of_moves(f"tick: {seconds}")).startswith("move 1 (tick: ")

    @pytest.mark.parametrize(
        "key",
        [
            "version", "selected", "charged", "closed", "in_flight", "ready", "training", "spares", "queued",
            "target_step", "start_weight", "gate", "status", "waits_for", "error", "outcome", "balance",
        ],
    )  # fmt: skip
    def test_only_assembling_can_be_expected_to_be_null(self, file: Path, key: str) -> None:
        said = problem(file, of_moves(f"expect: {{{key}: null}}"))
        assert said.startswith("move 1 ")
        assert key in said or key.replace("_", " ") in said


class TestAMoveThatCannotBeMade:
    @pytest.mark.parametrize(
        ("moves", "number", "reason"),
        [
            (["commit: [3]"], 1, "prompt 3 is not in flight"),
            (["commit: [0, 0]"], 1, "prompt 0 is not in flight"),
            (["commit: [0]", "filter: [0]"], 2, "prompt 0 is not in flight"),
            (["commit: [-1]"], 1, "prompt -1 is not in flight"),
            (["hang: [2]"], 1, "prompt 2 is not in flight"),
            (["fail: {prompt: 9, kind: data}"], 1, "prompt 9 is not in flight"),
            (["drop: [7]"], 1, "prompt 7 is not in flight"),
            (["late: [0]"], 1, "no attempt of prompt 0 is over"),
            (["late: [3]"], 1, "no attempt of prompt 3 is over"),
            (["chunk_trained"], 1, "no chunk is in training"),
            (["claim_failed: [0]"], 1, "no chunk is in training"),
            (["commit: [0, 1]", "claim_failed: [2]"], 2, "prompt 2 is not in the chunk in training"),
            (["commit: [0, 1]", "step_finished"], 2, "no optimizer step was asked for"),
            (["commit: [0, 1]", "weights_synced"], 2, "no weight sync was asked for"),
            (["commit: [0, 1]", "chunk_trained", "chunk_trained"], 3, "no chunk is in training"),
            (["commit: [0]", "close"], 2, "cannot close without more rollouts"),
            (["drop: [0]", "hang: [1]"], 2, "the run is stopped"),
            (["drop: [0]", "tick: 1"], 2, "the run is stopped"),
            (["drop: [0]", "checkpoint"], 2, "the run is stopped"),
            (["drop: [0]", "late: [0]"], 2, "the run is stopped"),
            (["drop: [0, 1]"], 1, "the run is stopped"),
            (["commit: [0, 1]", "close", "commit: [2, 3]", "close", "close"], 5, "the run is completed"),
        ],
    )
    def test_is_told_with_its_number_and_why(self, file: Path, moves: list[str], number: int, reason: str) -> None:
        said = problem(file, of_moves(*moves))
        assert said.startswith(f"move {number} (")
        assert reason in said

    def test_a_drop_during_a_sync_of_a_prompt_with_attempts_left(self, file: Path) -> None:
        text = of_moves("commit: [0, 1]", "chunk_trained", "step_finished", "drop: [2]")
        said = problem(file, text.replace("max_lookahead_versions: 0", "max_lookahead_versions: 1"))
        assert said.startswith("move 4 (drop: [2])")
        assert "weight sync" in said

    @pytest.mark.parametrize("move", ["commit: [0]", "filter: [0]", "fail: {prompt: 0, kind: data}", "hang: [0]"])
    def test_an_answer_of_a_prompt_that_backs_off(self, file: Path, move: str) -> None:
        text = of_moves("fail: {prompt: 0, kind: infra}", move)
        backoff = "async_rl: {rollout_failure: {backoff_base_s: 3}, "
        said = problem(file, text.replace("async_rl: {", backoff))
        assert said.startswith("move 2 (")
        assert "backs off" in said

    def test_an_expectation_that_does_not_hold_says_what_is_and_what_was_expected(self, file: Path) -> None:
        said = problem(file, of_moves("commit: [0]", "expect: {version: 3, ready: [1], charged: {0: 1}}"))
        assert said.startswith("move 2 (expect: ")
        for part in ("version is 0, expected 3", "ready are [0], expected [1]", "charged of step 0 is 0, expected 1"):
            assert part in said

    def test_an_end_that_does_not_hold_is_told_as_such(self, file: Path) -> None:
        said = problem(file, HOLDS.replace("version: 1", "outcome: completed"))
        assert said == "at the end: outcome is unfinished, expected completed"

    def test_training_is_compared_in_order(self, file: Path) -> None:
        said = problem(file, of_moves("commit: [0, 1]", "expect: {training: [1, 0]}"))
        assert "training, in order, are [0, 1], expected [1, 0]" in said

    def test_an_error_is_only_there_once_the_run_is_stopped(self, file: Path) -> None:
        assert "not stopped" in problem(file, of_moves("expect: {error: step}"))


class TestAFileThatIsNoScenario:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "a scenario is a mapping"),
            ("# nothing\n", "a scenario is a mapping"),
            ("- commit: [0]\n", "a scenario is a mapping"),
            ("just words\n", "a scenario is a mapping"),
            ("name: [unclosed\n", "not YAML"),
            ("a\n---\nb\n", "not YAML"),
            ("name: !!python/object/apply:os.getcwd []\n", "not YAML"),
            ("? [1]\n: 2\n", "not YAML"),
            ("name: 2001-99-99\n", "not YAML"),
            ("[" * 3000 + "]" * 3000, "not YAML"),
            ("data: {num_prompts: 1}\nmoves: [close]\n", "name"),
            ("name: 3\ndata: {num_prompts: 1}\nmoves: [close]\n", "name"),
            ("name: x\nmoves: [close]\n", "data is missing"),
            ("name: x\ndata: null\nmoves: [close]\n", "data is missing"),
            ("name: x\ndata: {num_prompts: -1}\nmoves: [close]\n", "num_prompts"),
            ("name: x\ndata: {num_promts: 1}\nmoves: [close]\n", "did you mean num_prompts?"),
            ("name: x\ndata: {num_prompts: 1}\n", "nothing is expected"),
            ("name: x\ndata: {num_prompts: 1}\nmove: [close]\n", "did you mean moves?"),
            ("name: x\ndata: {num_prompts: 1}\nmoves: {commit: [0]}\n", "moves"),
            ("name: x\ndata: {num_prompts: 1}\nmoves: null\n", "moves"),
            ("name: x\ndata: {num_prompts: 1}\nexpect: {outcom: completed}\n", "did you mean outcome?"),
            ("name: x\nconfig: null\ndata: {num_prompts: 1}\nmoves: [close]\n", "config"),
            ("name: x\nconfig_error: N\nmoves: [close]\n", "config_error stands instead of moves and expect"),
            ("1: 2\nname: x\n", "1"),
        ],
    )
    def test_is_told_why(self, file: Path, text: str, reason: str) -> None:
        assert reason in problem(file, text)

    @pytest.mark.parametrize(
        "text",
        [
            f"name: x\n{HEAD}moves: [close]\n",
            HEAD + "moves:\n  - {commit: [0], commit: [1]}\n",
            HEAD + "moves:\n  - expect: {ready: [0], ready: []}\n",
        ],
    )
    def test_a_key_given_twice_is_a_mistake_not_the_last_one(self, file: Path, text: str) -> None:
        assert "twice" in problem(file, text)

    def test_bytes_that_are_no_text_are_told(self, file: Path) -> None:
        file.write_bytes(b"\xff\xfe\x00name")
        assert run_file(file).problems[0].startswith("not YAML")

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ("{grop: {}}", "did you mean grpo?"),
            ("{async_rl: null}", "async_rl is null"),
            ("{async_rl: {rollout_failure: 3}}", "rollout_failure is 3"),
            ("{async_rl: {sampler: {name: custom, target: 'no_such_module:Sampler'}}}", "no_such_module"),
        ],
    )
    def test_a_configuration_that_is_refused_is_told(self, file: Path, config: str, reason: str) -> None:
        said = problem(file, f"name: x\nconfig: {config}\ndata: {{num_prompts: 4}}\nmoves: [close]\n")
        assert said.startswith("the configuration is refused")
        assert reason in said

    def test_a_configuration_that_should_be_refused_and_is_not(self, file: Path) -> None:
        assert "is accepted" in problem(file, f"name: x\n{CONFIG}\nconfig_error: buffer\n")

    def test_a_refusal_for_another_reason_is_no_pass(self, file: Path) -> None:
        said = problem(file, "name: x\nconfig: {grop: {}}\nconfig_error: buffer\n")
        assert "does not contain 'buffer'" in said


class TestTheCommand:
    def test_exits_0_when_all_hold(self, file: Path) -> None:
        file.write_text(HOLDS)
        result = command(file)
        assert result.exit_code == 0
        assert "1 scenario: 1 holds, 0 fail" in result.output

    def test_exits_1_when_one_is_mistaken_and_still_runs_the_others(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(of_moves("comit: [0]"))
        (tmp_path / "b.yml").write_text(HOLDS)
        result = command(tmp_path)
        assert result.exit_code == 1
        assert "2 scenarios: 1 holds, 1 fails" in result.output
        assert "a.yaml" in result.output
        assert "move 1 (comit: [0])" in result.output

    def test_exits_1_when_an_expectation_does_not_hold(self, file: Path) -> None:
        file.write_text(HOLDS.replace("version: 1", "version: 2"))
        assert command(file).exit_code == 1

    def test_exits_2_for_a_path_that_is_not_there(self, tmp_path: Path) -> None:
        result = command(tmp_path / "none.yaml")
        assert result.exit_code == 2
        assert "none.yaml does not exist" in result.output

    def test_exits_2_for_a_directory_without_scenarios(self, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text("nothing here")
        result = command(tmp_path)
        assert result.exit_code == 2
        assert "holds no .yaml file" in result.output

    def test_exits_2_without_a_path(self) -> None:
        assert command().exit_code == 2

    @pytest.mark.parametrize("kind", ["directory", "broken link"])
    def test_something_unreadable_among_the_files_does_not_keep_the_others_from_running(
        self, tmp_path: Path, kind: str
    ) -> None:
        odd = tmp_path / "a.yaml"
        if kind == "directory":
            odd.mkdir()
        else:
            os.symlink(tmp_path / "gone", odd)
        (tmp_path / "b.yaml").write_text(HOLDS)
        result = command(tmp_path)
        assert "b.yaml" in result.output
        assert result.exit_code in (0, 1)
        assert result.exception is None or isinstance(result.exception, SystemExit)

    def test_a_mistake_with_control_characters_prints_none(self, file: Path) -> None:
        file.write_text(HOLDS.replace("a mistake", '"a \\e[31mred\\a name"'))
        assert "\x1b" not in command(file).output

    def test_shows_the_state_after_each_move_when_asked(self, file: Path) -> None:
        file.write_text(HOLDS)
        output = command(file, "--verbose").output
        assert "1. commit: [0, 1]" in output
        assert "2. close" in output


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["FIFO", "device"])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd.yaml")
    result = command(tmp_path / "odd.yaml")
    assert result.exit_code == 1
    assert "cannot be read: a file is expected, but it is no plain file" in result.output


def test_a_directory_is_searched_and_a_file_named_twice_runs_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    inner = tmp_path / "deep" / "b.yml"
    inner.write_text(HOLDS)
    outer = tmp_path / "a.yaml"
    outer.write_text(HOLDS)
    assert find_scenarios([inner, tmp_path]) == [inner, outer]
