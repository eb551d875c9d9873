"""`evenstep check --property`: a property of a user is explored too, and its faults are its author's."""

import json
import re
from pathlib import Path

import pytest

from specs.processes import hanging
from specs.scenarios.run import run_file
from tests.runtime.cli.check.helpers import checked

ROOT = Path(__file__).parents[4]
HEAD = """\
import os
import time
from fsm.rules.changes import GroupsEvicted, RunCompleted, StepClosed
from fsm.state import is_over
from specs.properties.kinds import Always, Edge, always, edge, eventually, sometimes


"""
FIRST = HEAD.count("\n") + 1
"""The line on which what follows the head begins."""
EVICTS = '''\
@edge("E1")
def evicts_one(transition, laws):
    """No more than one group is ever evicted at once."""
    return all(sum(groups for _, groups in change.picks) <= 1 for change in transition.all_of(GroupsEvicted))
'''


@pytest.fixture
def check(tmp_path, monkeypatch, capfd):
    """Check a run with a property of a file that has this text; the file's name must be new in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(module: str, text: str, *args: object, names: tuple[str, ...] = ("prop",), config: str = "windowed"):
        (tmp_path / f"{module}.py").write_text(HEAD + text, encoding="utf-8")
        given = [part for name in names for part in ("--property", f"{module}:{name}")]
        basic = ["--jobs", "1", "--scope", "quick", str(ROOT / "examples" / f"{config}.yaml")]
        return checked(capfd, *basic, *given, *map(str, args))

    return run


def test_a_violated_property_is_reported_with_its_counterexample_and_saved_files_reproduce_it(check, tmp_path):
    result = check("evicting", EVICTS, "--save", tmp_path / "story.yaml", names=("evicts_one",))

    assert result.exit_code == 2, result.output
    assert "property evicting:evicts_one, scope quick" in result.stdout
    assert "violated: evicts_one: no more than one group is ever evicted at once" in result.stdout
    assert "- groups evicted (2 of start weight 0)" in result.stdout
    assert run_file(tmp_path / "story.yaml").problems == ()
    saved: dict[str, object] = {}
    exec(compile((tmp_path / "story.py").read_text(encoding="utf-8"), "story.py", "exec"), saved)
    saved["test_the_counterexample_breaks_evicts_one"]()  # type: ignore[operator]


@pytest.mark.parametrize("jobs", [1, 2])
def test_several_properties_that_hold_are_named_in_the_json(check, jobs):
    text = '''
@always("X1")
def pool_is_small(state, laws):
    """The pool never holds more than a reserve and a batch."""
    return state.pool.spares <= laws.limits.reserve + laws.limits.size


@sometimes("L5")
def closes(transition, laws):
    """A step closes."""
    return bool(transition.all_of(StepClosed))


@eventually("X1")
def finally_over(transition, laws):
    """Every run is over in the end."""
    return is_over(transition.after)
'''
    names = ("pool_is_small", "closes", "finally_over")
    result = check(f"holding_{jobs}", text, "--json", "--jobs", jobs, names=names)
    said = json.loads(result.stdout)

    assert result.exit_code == 0, result.output
    assert said["verdict"] == "holds"
    assert said["bounds"][0]["properties"] == [f"holding_{jobs}:{name}" for name in names]


def test_a_state_property_is_told_with_the_state_that_breaks_it(check):
    text = '''
@always("S1")
def prop(state, laws):
    """No more than two groups are ready."""
    return state.sheet.ready <= 2
'''
    result = check("breaking", text)

    assert result.exit_code == 2, result.output
    assert "violated: prop: no more than two groups are ready" in result.stdout
    assert "ready 3" in result.stdout.partition("  it is ")[0].splitlines()[-1]


def test_what_never_happens_is_violated_without_a_counterexample(check, tmp_path):
    text = '@sometimes()\ndef prop(transition, laws):\n    """A step has three million groups."""\n    return False\n'
    result = check("never", text, "--save", tmp_path / "story.yaml")

    assert result.exit_code == 2, result.output
    assert "violated: prop: this never happens: a step has three million groups" in result.stdout
    assert "prop never happens, which no counterexample shows" in result.stderr
    assert not (tmp_path / "story.yaml").exists()


PREDICATE = '@edge()\ndef prop(transition, laws):\n    """Sentence."""\n    {}\n'
BODY = FIRST + 3


@pytest.mark.parametrize(
    ("module", "text", "line", "said"),
    [
        ("raises_on_import", "\nraise RuntimeError('boom')\n", FIRST + 1, "cannot be imported"),
        ("exits_on_import", "os.abort = None\nraise SystemExit(0)\n", FIRST + 1, "SystemExit: 0"),
        ("has_no_syntax", "def prop(:\n", FIRST, "SyntaxError"),
        ("has_another", "@edge()\ndef probe(transition, laws):\n    return True\n", None, "did you mean probe?"),
        ("has_none", "x = 1\n", None, "has no prop; its properties: none"),
        ("is_a_function", "def prop(transition, laws):\n    return True\n", FIRST, "is a function; expected an Always"),
        ("is_a_number", "x = 1\nprop = 3\n", FIRST + 1, "is a int; expected an Always, Edge, Sometimes or Eventually"),
        ("has_a_taken_name", "prop = Edge('balance', 'x', (), print)\n", FIRST, "a built-in property is named balance"),
        ("is_named_deadlock", "prop = Edge('deadlock', 'x', (), print)\n", FIRST, "named deadlock too; rename"),
        ("has_no_name", "prop = Edge('a b', 'x', (), print)\n", FIRST, "its name is 'a b'; expected letters"),
        ("has_no_sentence", "prop = Edge('a', None, (), print)\n", FIRST, "expected a sentence, and rules as a tuple"),
        ("has_no_predicate", "prop = Edge('a', 'x', (), None)\n", FIRST, "its predicate is a NoneType; expected a"),
        ("raises", PREDICATE.format("return 1 // 0"), BODY, "raised ZeroDivisionError"),
        ("raises_as_the_core", PREDICATE.format("raise ValueError('x')"), BODY, "raised ValueError: x"),
        ("exits", PREDICATE.format("raise SystemExit(0)"), BODY, "raised SystemExit: 0"),
        ("forgets_to_return", PREDICATE.format("transition.done"), FIRST, "answered None"),
        ("answers_with_a_number", PREDICATE.format("return 1"), FIRST, "answered 1"),
    ],
)  # fmt: skip
def test_a_fault_of_a_property_is_its_authors_with_file_and_line(check, tmp_path, module, text, line, said):
    result = check(module, text)

    assert result.exit_code == 1, result.output
    assert f"{module}:prop" in result.stderr
    assert said in result.stderr
    place = str(tmp_path / f"{module}.py") + ("" if line is None else f", line {line}")
    assert re.search(re.escape(place) + r"\b", result.stderr), result.stderr
    assert "Traceback" not in result.output


def test_two_properties_of_one_name_and_one_given_twice_are_refused(check):
    text = "prop = Edge('mine', 'x', (), print)\nother = Edge('mine', 'y', (), print)\n"

    result = check("same_names", text, names=("prop", "other"))
    assert result.exit_code == 1
    assert "another --property is named mine too" in result.stderr
    assert f"same_names.py, line {FIRST + 1}" in result.stderr
    assert "--property same_names:prop is given twice" in check("same_names", text, names=("prop", "prop")).stderr


def test_more_than_the_checker_can_take_are_refused(check):
    text = "".join(f"@eventually()\ndef p{n}(transition, laws):\n    return True\n" for n in range(7))

    assert (
        "more than 6 --property are an Eventually" in check("too_many", text, names=[f"p{n}" for n in range(7)]).stderr
    )


@pytest.mark.parametrize("where", ["imported", "asked"])
def test_a_property_that_ends_the_process_proves_nothing(check, where):
    text = "os._exit(0)\n" if where == "imported" else PREDICATE.format("os._exit(0)")
    result = check(f"vanishes_when_{where}", text)

    assert result.exit_code == 1, result.output
    assert f"property vanishes_when_{where}:prop ended the process that it was asked in" in result.stderr


@pytest.mark.parametrize(
    ("where", "how", "line"), [("imported", "while it was imported", FIRST), ("asked", "prop did not return", BODY)]
)
def test_a_property_that_hangs_is_named_with_its_line(check, monkeypatch, tmp_path, where, how, line):
    monkeypatch.setattr(hanging, "LOADING_S", 2.0)
    body = "time.sleep(10**6)"
    text = f"{body}\n" if where == "imported" else PREDICATE.format(body)
    result = check(f"hangs_when_{where}", text, "--seconds", 1)

    assert result.exit_code == 1, result.output
    said = rf"property hangs_when_{where}:prop hangs: {how}, for [3-6] s, in .*hangs_when_{where}.py, line {line}\b"
    assert re.search(said, result.stderr), result.stderr


def test_a_property_that_answers_now_this_and_now_that_is_to_blame(check):
    text = "calls = []\n" + PREDICATE.format("calls.append(1); return len(calls) % 50 != 0")
    result = check("is_moody", text)

    assert result.exit_code == 1, result.output
    assert "property is_moody:prop gave different answers for the same arguments" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--property", "nowhere"), "--property nowhere: allowed: module:name, or file.py:name"),
        (("--property", "nowhere.py:prop"), "there is no file nowhere.py; allowed: module:name"),
        (("--property", "no_module_of_that_name:prop"), "module no_module_of_that_name cannot be imported"),
        (("--all", "--property", "a:b"), "goes with no --property"),
    ],
)
def test_wrong_use_is_refused(capfd, args, said):
    result = checked(capfd, "--jobs", "1", "--scope", "quick", *args)

    assert result.exit_code == 1
    assert said in result.stderr


def test_a_property_of_a_file_is_found_by_its_path_and_never_overwritten(tmp_path, capfd):
    file = tmp_path / "found_by_path.py"
    file.write_text(HEAD + EVICTS, encoding="utf-8")
    args = ["--jobs", "1", "--scope", "quick", "--property", f"{file}:evicts_one"]

    assert "property found_by_path:evicts_one" in checked(capfd, *args).stdout
    assert "would overwrite what is checked" in checked(capfd, *args, "--junit", str(file)).stderr


def test_a_property_is_explored_under_a_custom_sampler_too(check):
    result = check("with_a_sampler", EVICTS, names=("evicts_one",), config="custom_sampler")

    assert result.exit_code == 0, result.output
    assert "sampler custom examples.short_first:ShortFirst, property with_a_sampler:evicts_one" in result.stdout
