"""What `evenstep check` writes is refused before anything is gone through, and overwrites nothing of its user's."""

import pytest

from tests.runtime.cli.check.helpers import checked

SAMPLER = """
from fsm.samplers.builtin import ReadyFirst


class Waits(ReadyFirst):
    def select(self, view, min_groups, max_groups):
        return ()
"""


@pytest.fixture
def check(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)

    def run(*args: str):
        return checked(capfd, "--jobs", "1", "--scope", "quick", *args)

    return run


def of_a_sampler(tmp_path, name):
    file = tmp_path / f"{name}.py"
    file.write_text(SAMPLER, encoding="utf-8")
    return f"{name}.py:Waits"


@pytest.mark.parametrize("option", ["--junit", "--sarif", "--save"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "folder"),
        ("a_folder", "a file is expected, but it is a directory"),
        ("nowhere/file", "No such file"),
        ("/proc/file", "cannot be written"),
        ("x" * 300, "too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_gone_through(
    check, tmp_path, option, place, said
):
    (tmp_path / "a_folder").mkdir()
    result = check(option, place)

    assert result.exit_code == 1, result.output
    assert said in result.stderr
    assert option in result.stderr
    assert "cases" not in result.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--junit", "a.x", "--sarif", "./a.x"), "--junit and --sarif are both a.x"),
        (("--sarif", "a.py", "--save", "a.yaml"), "--sarif and the test of --save are both a.py"),
        (("--save", "a.py"), "name the scenario, as in --save a.yaml"),
    ],
)
def test_two_files_in_one_place_are_refused(check, tmp_path, args, said):
    result = check(*args)

    assert result.exit_code == 1
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["notes.yaml", "notes"])
def test_saving_overwrites_neither_a_file_of_ones_own_nor_one_with_the_name_of_the_test(check, tmp_path, place):
    for name in ("notes.yaml", "notes.py"):
        (tmp_path / name).write_text("mine\n", encoding="utf-8")
    result = check("--save", place)

    assert result.exit_code == 1
    assert "was not written by `evenstep check --save`" in result.stderr
    assert (tmp_path / "notes.py").read_text(encoding="utf-8") == "mine\n"
    assert (tmp_path / "notes.yaml").read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize("option", ["--junit", "--sarif"])
def test_no_report_overwrites_the_sampler_or_the_configuration(check, tmp_path, option):
    target = of_a_sampler(tmp_path, f"kept_from_{option[2:]}")
    file = tmp_path / target.partition(":")[0]
    config = tmp_path / "run.yaml"
    config.write_text("grpo: {num_prompts_per_step: 2}\n", encoding="utf-8")
    linked = tmp_path / "link"
    linked.symlink_to(config)

    for place in (file, config, linked):
        result = check("run.yaml", "--sampler", target, option, str(place))
        assert result.exit_code == 1
        assert "would overwrite what is checked" in result.stderr
    assert file.read_text(encoding="utf-8") == SAMPLER


def test_what_was_saved_may_be_saved_again_until_its_mark_is_gone(check, tmp_path):
    target = of_a_sampler(tmp_path, "waits_for_ever")
    args = ("--sampler", target, "--save", "story.yaml")
    scenario, test = tmp_path / "story.yaml", tmp_path / "story.py"
    assert check(*args).exit_code == 2
    first = scenario.read_text(encoding="utf-8"), test.read_text(encoding="utf-8")

    assert check(*args).exit_code == 2
    assert (scenario.read_text(encoding="utf-8"), test.read_text(encoding="utf-8")) == first
    kept = first[1].partition("\n")[2]
    test.write_text(kept, encoding="utf-8")
    assert check(*args).exit_code == 1
    assert test.read_text(encoding="utf-8") == kept


def test_a_report_may_be_written_again_and_to_what_is_no_plain_file(check, tmp_path):
    for _ in range(2):
        assert check("--junit", "junit.xml", "--sarif", "/dev/null").exit_code == 0
    assert (tmp_path / "junit.xml").read_text(encoding="utf-8").startswith("<?xml")
    assert [file.name for file in tmp_path.iterdir()] == ["junit.xml"]


@pytest.mark.parametrize(
    "args",
    [("--junit", "a"), ("--sarif", "a"), ("--save", "a"), ("--sampler-option", "a=1"), ("--no-setup-checks",)],
)
def test_the_matrix_refuses_what_it_has_no_use_for(check, args):
    result = check("--all", *args)

    assert result.exit_code == 1
    assert f"it goes with no {args[0]}" in result.stderr
