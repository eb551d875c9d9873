"""Style as a test: file sizes, who imports whom, and what the core may not touch."""

import ast
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fsm", "specs", "runtime")
FILES = {package: sorted((ROOT / package).rglob("*.py")) for package in PACKAGES}
MACHINES = (
    "admission_gate", "prompt_group", "run", "shortfall_ledger", "source", "spare_pool", "step_assembly", "trainer",
)  # fmt: skip
NOT_IN_THE_CORE = {
    "asyncio", "datetime", "logging", "numpy", "os", "random", "ray", "secrets", "socket", "subprocess", "sys",
    "threading", "time", "torch", "uuid",
}  # fmt: skip

ALL_FILES = [pytest.param(file, id=str(file.relative_to(ROOT))) for files in FILES.values() for file in files]


def imports_of(file: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or in its functions."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import in line {node.lineno}"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def top(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("file", ALL_FILES)
def test_every_file_can_be_read_in_one_sitting(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


def test_messages_and_documents_say_cannot_alike() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = {file: file.read_text(encoding="utf-8") for file in (*documents, *chain(*FILES.values()))}
    assert [str(file.relative_to(ROOT)) for file, text in texts.items() if "can" + "'t" in text] == []


@pytest.mark.parametrize("file", ALL_FILES)
def test_every_file_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), "no docstring"


@pytest.mark.parametrize("file", FILES["fsm"], ids=lambda file: file.stem)
def test_the_core_knows_no_clock_no_chance_no_log_no_loop_and_no_tensor(file: Path) -> None:
    assert not top(imports_of(file)) & NOT_IN_THE_CORE


def parts_of(package: str) -> list[str]:
    """The parts of a package, in the order that its docstring lists them."""
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
    assert docstring is not None
    return re.findall(r"^ {4}(\w+) {2,}", docstring, re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_all_its_parts(package: str) -> None:
    found = {path.stem for path in (ROOT / package).iterdir() if path.is_dir() or path.suffix == ".py"}
    assert sorted(parts_of(package)) == sorted(found - {"__init__", "__pycache__"})


@pytest.mark.parametrize("file", ALL_FILES)
def test_a_part_imports_only_those_above_it(file: Path) -> None:
    package, part = file.relative_to(ROOT).with_suffix("").parts[:2]
    above = {"fsm": [], "specs": ["fsm"], "runtime": ["fsm"]}[package]
    if part == "__init__":
        above.append(package)
    else:
        parts = parts_of(package)
        above += [f"{package}.{name}" for name in parts[: parts.index(part) + 1]]
    if part in ("cli", "simulation"):
        above.append("specs")
    ours = {module for module in imports_of(file) if module.partition(".")[0] in {*PACKAGES, "tests", "examples"}}
    ours -= {"specs", "runtime"}  # `from specs import model` names the package too
    wrong = {module for module in ours if not any(module == name or module.startswith(f"{name}.") for name in above)}
    assert not wrong


def test_no_imports_go_round_in_a_circle() -> None:
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file for files in FILES.values() for file in files
    }
    imports = {name: imports_of(file) & modules.keys() for name, file in modules.items()}
    left = dict(imports)
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_nothing_is_there_that_nothing_uses() -> None:
    found = subprocess.run([sys.executable, "-m", "vulture"], cwd=ROOT, capture_output=True, text=True, check=False)
    told = [line for line in found.stdout.splitlines() if "unused variable" not in line]  # fields, most of them
    assert found.returncode in (0, 3), found.stderr
    assert [line for line in told if not line.startswith("tests")] == []


@pytest.mark.parametrize("file", ALL_FILES)
def test_functions_are_short(file: Path) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = {node.name: (node.end_lineno or 0) - node.lineno for node in ast.walk(tree) if isinstance(node, functions)}
    assert {name: lines for name, lines in found.items() if lines > 85} == {}  # a command declares its options


def test_what_is_cited_is_in_the_repository() -> None:
    files = [file for part in (*PACKAGES, "tests", "benchmarks", "examples") for file in (ROOT / part).rglob("*.py")]
    cited = "DES" + "IGN"
    assert [str(file) for file in files if cited in file.read_text(encoding="utf-8")] == []


def test_no_two_classes_have_the_same_name() -> None:
    found = Counter(
        node.name
        for package in PACKAGES
        for file in FILES[package]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in found.items() if times > 1] == []


@pytest.mark.parametrize("folder", sorted({file.parent for files in FILES.values() for file in files}), ids=str)
def test_a_folder_can_be_taken_in_at_a_glance(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= 15


@pytest.mark.parametrize("machine", MACHINES)
def test_state_machines_do_not_import_each_other(machine: str) -> None:
    others = {f"fsm.machines.{other}" for other in MACHINES if other != machine}
    assert not imports_of(ROOT / "fsm/machines" / f"{machine}.py") & others


def test_every_file_with_a_rule_table_is_known_as_a_machine() -> None:
    with_tables = {
        file.stem
        for file in FILES["fsm"]
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Table[")
    }
    assert with_tables == set(MACHINES)
