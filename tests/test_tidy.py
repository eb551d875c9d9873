"""Style as a test: file sizes, who imports whom, and what the core may not touch (DESIGN, 2 and 3)."""

import ast
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


def imports_of(file: Path, *, wherever: bool = True) -> set[str]:
    """Full names of all modules that a file imports; not `wherever`: at its top level only."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if wherever else tree.body:
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
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 500


@pytest.mark.parametrize("file", ALL_FILES)
def test_every_file_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), "no docstring"


@pytest.mark.parametrize("file", FILES["fsm"], ids=lambda file: file.stem)
def test_the_core_knows_no_clock_no_chance_no_log_no_loop_and_no_tensor(file: Path) -> None:
    assert not top(imports_of(file)) & NOT_IN_THE_CORE


@pytest.mark.parametrize("file", FILES["fsm"], ids=lambda file: file.stem)
def test_the_core_imports_none_of_the_other_packages(file: Path) -> None:
    assert not top(imports_of(file)) & {"specs", "runtime", "tests", "examples"}


@pytest.mark.parametrize("file", FILES["specs"], ids=lambda file: file.stem)
def test_specs_imports_nothing_of_runtime(file: Path) -> None:
    assert not top(imports_of(file)) & {"runtime", "tests", "examples"}


@pytest.mark.parametrize("file", FILES["runtime"], ids=lambda file: str(file.relative_to(ROOT)))
def test_runtime_imports_specs_only_inside_its_commands(file: Path) -> None:
    if "commands" not in file.parts:
        assert "specs" not in top(imports_of(file, wherever=False))


@pytest.mark.parametrize("machine", MACHINES)
def test_state_machines_do_not_import_each_other(machine: str) -> None:
    others = {f"fsm.{other}" for other in MACHINES if other != machine}
    assert not imports_of(ROOT / "fsm" / f"{machine}.py") & others


def test_every_file_with_a_rule_table_is_known_as_a_machine() -> None:
    with_tables = {
        file.stem
        for file in FILES["fsm"]
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Table[")
    }
    assert with_tables == set(MACHINES)
