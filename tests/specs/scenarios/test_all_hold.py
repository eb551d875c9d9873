"""Every scenario file holds: those of this repository, and the shared ones where they are there."""

from pathlib import Path

import pytest

from specs.scenarios.file import load_scenario
from specs.scenarios.run import find_scenarios, run_file

REPOSITORY = Path(__file__).resolve().parents[3]
OURS = REPOSITORY / "tests" / "scenarios"
SHARED = REPOSITORY.parent / "shared" / "scenarios"
FILES = find_scenarios([folder for folder in (OURS, SHARED) if folder.is_dir()])

RULES_OF = {"A": 6, "D": 3, "S": 5, "E": 2, "L": 8, "P": 2, "X": 4, "W": 3, "C": 4}
"""How many rules each letter has in docs/rules.md."""
RULES = [f"{letter}{number}" for letter, count in RULES_OF.items() for number in range(1, count + 1)]
ELSEWHERE = {
    "S4": "two halves of one transition cannot be seen apart from outside",
    "X2": "a violation is a defect of the core, which no scenario can ask for",
    "C3": "a scenario has one configuration",
    "W3": "how a run ends is the runtime's part: tests/runtime/ends",
    "C4": "which run a checkpoint belongs to is the runtime's part: tests/runtime/checkpoints",
}
"""Rules that no scenario can show, and why."""


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY.parent if path.is_relative_to(SHARED) else REPOSITORY))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_scenario_holds(path: Path) -> None:
    verdict = run_file(path)
    assert verdict.holds, "\n".join(verdict.problems)


def test_no_two_scenarios_have_the_same_name() -> None:
    names = [load_scenario(path).name for path in FILES if path.is_relative_to(OURS)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ELSEWHERE])
def test_each_rule_is_the_source_of_a_scenario(rule: str) -> None:
    sources = [
        line
        for path in FILES
        if path.is_relative_to(OURS)
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("source:")
    ]
    assert any(rule in line.replace(",", " ").split() for line in sources)
