"""`evenstep check` from the command line: exit codes, and what it writes."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from specs.scenarios.run import run_file
from tests.runtime.cli.check.helpers import checked

ROOT = Path(__file__).parents[4]
HANGS = """
grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2, use_dynamic_sampling: true}
async_rl:
  sampler: {name: weight_fifo, max_staleness_versions: 1}
  rollout_failure: {on_dropped_prompt: replace, min_step_batch_fraction: 0.5}
"""


@pytest.fixture
def check(monkeypatch, capfd):
    monkeypatch.chdir(ROOT)

    def run(*args: object):
        return checked(capfd, "--jobs", "1", "--scope", "quick", *map(str, args))

    return run


@pytest.fixture
def hangs(tmp_path):
    path = tmp_path / "hangs.yaml"
    path.write_text(HANGS, encoding="utf-8")
    return path


def test_the_default_run_holds_and_says_for_which_bounds(check):
    result = check()

    assert result.exit_code == 0, result.output
    assert "the default run: sampler ready_first, scope quick" in result.stdout
    assert "N 2, window 1, streaming minimum 2" in result.stdout
    assert "holds:" in result.stdout.splitlines()[-1]


def test_json_has_the_verdict_and_everything_it_rests_on(check):
    result = check("examples/in_order_synchronous.yaml", "--json")
    said = json.loads(result.stdout)

    assert result.exit_code == 0
    assert (said["verdict"], said["property"], said["counterexample"]) == ("holds", None, [])
    assert said["states"] == sum(case["states"] for case in said["bounds"]) > 0
    assert said["transitions"] > 0
    assert said["seconds"] >= 0
    assert said["bounds"][0]["limits"]["size"] == 2
    assert {"key": "grpo.num_prompts_per_step", "given": 8, "checked": 2, "keeps": "N, smaller"} in said["bounds"][0][
        "changed"
    ]


def test_a_hang_is_told_reported_and_saved_so_that_a_scenario_reproduces_it(check, hangs, tmp_path):
    files = {name: tmp_path / name for name in ("story.yaml", "junit.xml", "found.sarif")}
    result = check(
        hangs, "--no-setup-checks", "--json",
        "--save", files["story.yaml"], "--junit", files["junit.xml"], "--sarif", files["found.sarif"],
    )  # fmt: skip
    said = json.loads(result.stdout)

    assert result.exit_code == 2
    assert (said["verdict"], said["property"]) == ("violated", "deadlock")
    assert 0 < len(said["counterexample"]) <= 25
    assert said["counterexample"][0]["event"] == "commit"
    assert said["counterexample"][0]["prompt"] >= 0
    assert run_file(files["story.yaml"], check_setup=False).problems == ()
    assert (tmp_path / "story.py").exists()
    suite = ElementTree.parse(files["junit.xml"]).getroot()
    assert int(suite.attrib["failures"]) > 0
    assert "deadlock" in {failure.attrib["type"] for failure in suite.iter("failure")}
    found = json.loads(files["found.sarif"].read_text(encoding="utf-8"))
    assert found["version"] == "2.1.0"
    assert found["runs"][0]["results"][0]["ruleId"] == "deadlock"


def test_the_story_of_a_hang_is_numbered_and_ends_with_what_the_run_waits_for(check, hangs):
    result = check(hangs, "--no-setup-checks")

    assert result.exit_code == 2
    assert "violated: deadlock: the run is not over, and nothing can ever happen again" in result.stdout
    assert "    1. the rollout of prompt" in result.stdout
    assert "deadlocked, nothing can ever happen: weight_fifo selects none of" in result.stdout


@pytest.mark.parametrize("target", ["examples.shortsighted:Shortsighted", "examples/shortsighted.py:Shortsighted"])
def test_a_sampler_with_a_planted_hang_is_caught_from_its_source_file_alone(check, target, tmp_path):
    saved = tmp_path / "story.yaml"
    result = check("--sampler", target, "--save", saved)

    assert result.exit_code == 2, result.output
    assert "violated: deadlock" in result.stdout
    assert "Shortsighted selects none of" in result.stdout
    assert run_file(saved).problems == (), "a run under this sampler would start, and hang"


def test_a_sampler_that_raises_is_to_blame_first_and_its_error_is_told(check, tmp_path):
    file = tmp_path / "raises_at_selection.py"
    file.write_text(
        "from fsm.samplers.builtin import ReadyFirst\n"
        "class Raises(ReadyFirst):\n"
        "    def select(self, view, min_groups, max_groups):\n"
        "        raise RuntimeError('out of ideas')\n"
    )
    result = check("--sampler", f"{file}:Raises")

    assert result.exit_code == 2
    assert "violated: sampler: no run is stopped by its sampler" in result.stdout
    assert "select raised RuntimeError: out of ideas" in result.stdout
    assert "also violated: completes: this never happens: the run is completed" in result.stdout


@pytest.mark.parametrize(
    ("answers", "said"),
    [("raise LookupError('no label')", "label raised LookupError: no label"), ("return 5", "label gave 5")],
)
def test_a_sampler_that_gives_no_label_has_no_verdict(check, tmp_path, answers, said):
    file = tmp_path / f"labels_{len(answers)}.py"
    file.write_text(
        "from fsm.samplers.builtin import ReadyFirst\n"
        "class Labels(ReadyFirst):\n"
        "    labels = 2\n"
        f"    def label(self, record):\n        {answers}\n"
    )
    result = check("--sampler", f"{file}:Labels")

    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_sampler_prints_is_no_part_of_the_json(check, tmp_path, jobs):
    file = tmp_path / f"prints_{jobs}.py"
    file.write_text(
        "from fsm.samplers.builtin import ReadyFirst\n"
        "print('imported')\n"
        "class Prints(ReadyFirst):\n"
        "    def select(self, view, min_groups, max_groups):\n"
        "        print('asked')\n"
        "        return super().select(view, min_groups, max_groups)\n"
    )
    result = check("--sampler", f"{file}:Prints", "--json", "--jobs", jobs)

    assert json.loads(result.stdout)["verdict"] == "holds"
    assert "asked" in result.stderr


def test_the_floor_hides_no_hang_of_a_run_that_setup_refuses(check, tmp_path):
    path = tmp_path / "no_loss_allowed.yaml"
    path.write_text(HANGS.replace("min_step_batch_fraction: 0.5", "min_step_batch_fraction: 1.0"), encoding="utf-8")
    result = check("--no-setup-checks", path)

    assert result.exit_code == 2
    assert "violated: deadlock" in result.stdout


def test_a_check_says_which_promises_it_holds_a_sampler_to(check, tmp_path):
    """A subclass that overrides `select` alone drops what its base promised about selection, and that shows."""
    source = tmp_path / "narrowed.py"
    source.write_text(
        "from fsm.samplers.builtin import Windowed\n\n\n"
        "class Narrowed(Windowed):\n"
        "    def select(self, view, min_groups, max_groups):\n"
        "        return super().select(view, min_groups, max_groups)\n",
        encoding="utf-8",
    )
    option = ["--sampler-option", "max_staleness_versions=1"]
    output = check("--sampler", f"{source}:Narrowed", *option, "--scope", "quick").output
    [line] = [line for line in output.splitlines() if "is held to its promises" in line]
    assert "batch_stamp nothing, max_lead_versions no limit, charges_losses False" in line
    assert line.endswith("it promises nothing about staleness_bound, selects_from, selection_order, evicts_stale")


def test_a_good_sampler_holds_with_an_option_of_its_own(check):
    result = check("--sampler", "examples.short_first:ShortFirst", "--sampler-option", "short_tokens=10")

    assert result.exit_code == 0, result.output
    assert "sampler custom examples.short_first:ShortFirst" in result.stdout


def test_a_scenario_file_is_checked_with_its_configuration_and_data(check, tmp_path):
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "name: five prompts\nconfig: {grpo: {num_prompts_per_step: 2}, async_rl: {sampler: {name: windowed}}}\n"
        "data: {num_prompts: 5}\nmoves: [{commit: [0]}]\n",
        encoding="utf-8",
    )
    said = json.loads(check(scenario, "--json").stdout)

    assert said["verdict"] == "holds"
    assert said["bounds"][0]["sampler"]["name"] == "windowed"
    assert said["bounds"][0]["data"]["num_prompts"] % 2 == 1, "its trailing batch is kept"


def test_a_bound_that_is_hit_exits_with_3(check):
    result = check("--seconds", "0")

    assert result.exit_code == 3
    assert "undetermined: " in result.stdout.splitlines()[-1]
    assert "more than 0 s" in result.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nowhere.yaml",), "cannot be read"),
        (("--sampler", "examples.nowhere:Sampler"), "cannot be imported"),
        (("--sampler", "ready_first"), "named in the configuration, in async_rl.sampler.name"),
        (("--sampler", "examples.short_first:"), "--sampler examples.short_first:: allowed: module:ClassName"),
        (("--sampler", "nowhere.py:Sampler"), "there is no file nowhere.py"),
        (("--sampler", "examples.short_first:ShortFirst", "--sampler-option", "short_tokens"), "allowed is key=value"),
        (("--sampler-option", "a=1"), "goes with --sampler"),
        (("--scope", "everything"), "everything"),
        (("--no-such-option",), "--no-such-option"),
        (("--all", "examples/default.yaml"), "goes with no CONFIG"),
    ],
)
def test_wrong_input_exits_with_1_and_says_what_is_wrong(check, args, said):
    result = check(*args)

    assert result.exit_code == 1
    assert said in result.output


def test_what_setup_refuses_is_refused_and_exits_with_1(check, hangs):
    result = check(hangs)

    assert result.exit_code == 1
    assert "the weight_fifo sampler cannot be combined with grpo.use_dynamic_sampling" in result.output
