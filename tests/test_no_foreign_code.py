"""No code runs but evenstep's and what the configuration names: no eval, no pickle from a file, no YAML that builds
objects, no model that brings its own code.

What is allowed is named here with its reason, so that anything else must be argued for.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(file for package in ("fsm", "specs", "runtime") for file in (ROOT / package).rglob("*.py"))
ALLOWED = {
    ("exec", "fsm/values/updates.py"): "makes `_replace` from the field names of our own classes",
    ("pickle.dumps", "runtime/tasks/verdicts/wire.py"): "cases, to a child process over its pipe",
    ("pickle.loads", "runtime/tasks/verdicts/wire.py"): "in that child, which reads only from its parent",
    ("pickle.dump", "runtime/tasks/rows/scanning.py"): "a Scan, to a child process over its standard input",
    ("pickle.load", "runtime/tasks/rows/scan_process.py"): "in that child",
    ("yaml.load", "fsm/config/strict.py"): "with a loader derived from SafeLoader",
    ("import_module", "fsm/config/sampler_loading.py"): "the sampler that the configuration names",
    ("import_module", "runtime/tasks/judges.py"): "the functions that the configuration names",
    ("import_module", "runtime/metrics/writers.py"): "a backend of ours: tensorboard, prometheus-client, wandb",
    ("import_module", "runtime/launch/machine.py"): "psutil",
    ("import_module", "runtime/migrate/reading.py"): "omegaconf",
}
DANGEROUS = {
    "eval", "exec", "compile", "__import__", "import_module", "pickle.load", "pickle.loads", "pickle.dump",
    "pickle.dumps", "pickle.Unpickler", "cloudpickle.loads", "cloudpickle.load", "marshal.loads", "marshal.load",
    "shelve.open", "dill.load", "dill.loads", "joblib.load", "torch.load", "yaml.load", "yaml.load_all",
    "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen", "code.interact", "runpy.run_path",
    "runpy.run_module", "pandas.read_pickle",
}  # fmt: skip


def calls_of(file: Path) -> list[tuple[str, ast.Call]]:
    """The calls in a file, by name; `importlib.import_module` and `import_module` are one."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found.append((name.removeprefix("importlib.").removeprefix("builtins."), node))
    return found


def uses_of(file: Path) -> set[str]:
    """The names that a file uses, called or not: a function may be bound to another name first."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    names = (ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute))
    return {name.removeprefix("importlib.").removeprefix("builtins.") for name in names}


def test_dangerous_functions_are_used_where_it_is_argued_for() -> None:
    found = {(name, str(file.relative_to(ROOT))) for file in FILES for name in uses_of(file) & DANGEROUS}
    ours = {call for call in found if not call[1].startswith("specs/evidence/")}  # no user's file reaches it
    assert ours == set(ALLOWED)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("eval('1')", "eval"),
        ("import importlib\nimportlib.import_module('x')", "import_module"),
        ("torch.load('x')", "torch.load"),
        ("builtins.exec('x')", "exec"),
        ("import pickle\nload = pickle.loads", "pickle.loads"),
    ],
)
def test_the_search_finds_them(source: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(source)
    assert name in uses_of(tmp_path / "x.py") & DANGEROUS


def keywords(call: ast.Call) -> dict[str, object]:
    return {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg is not None}


def test_no_model_or_tokenizer_may_bring_its_own_code() -> None:
    loads = [(file, call) for file in FILES for name, call in calls_of(file) if name.endswith(".from_pretrained")]
    assert len(loads) > 5
    assert [file for file, call in loads if keywords(call).get("trust_remote_code") != "False"] == []


def test_no_array_is_read_that_may_hold_objects_and_no_command_goes_through_a_shell() -> None:
    named = [(name, keywords(call)) for file in FILES for name, call in calls_of(file)]
    assert [name for name, given in named if {"allow_pickle", "shell"} & given.keys()] == []
