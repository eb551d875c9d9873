"""Updates of the state: `_replace` is generated, and typed under `mypy --strict`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsm.machines.prompt_group import BalanceSheet
from fsm.state import NONE, GroupClass, State, starting
from fsm.values import pages


def test_an_update_puts_new_values_into_the_fields_named_and_keeps_the_others() -> None:
    ready = pages.of([(GroupClass(start_weight=3), 2)])
    state = State(filtered=(((1, 2),),))._replace(ready=ready, sheet=BalanceSheet(pulled=2, ready=2))
    assert state == State(filtered=(((1, 2),),), ready=ready, sheet=BalanceSheet(pulled=2, ready=2))
    assert type(state) is State
    assert state._replace() == state


def test_none_zero_and_nothing_are_values_too() -> None:
    assert BalanceSheet(pulled=2, ready=2)._replace(ready=0) == BalanceSheet(pulled=2)
    assert State(filtered=(((1, 2),),))._replace(filtered=()) == State()
    assert starting(GroupClass(4, 5, 6, 7, 8), NONE) == GroupClass(4, 5, NONE, 7, 8)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="reddy"):
        State()._replace(reddy=())  # type: ignore[call-arg]


UPDATES = """
from fsm.state import GroupClass, State, starting
state = State()
state._replace(running=(((GroupClass(), 2),),), sheet=state.sheet._replace(ready=2))
state._replace(running=(((GroupClass(), "2"),),))
state._replace(sheet="a text")
state.sheet._replace(ready="2")
starting(GroupClass(), "3")
"""


def test_mypy_refuses_a_value_of_the_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "updates.py").write_text(UPDATES)
    command = ["--strict", "--config-file=", f"--cache-dir={tmp_path}", str(tmp_path / "updates.py")]
    environment = {**os.environ, "MYPYPATH": str(Path(__file__).parents[3])}
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *command], env=environment, capture_output=True, text=True, check=False
    )
    found = checked.stdout
    wrong = re.findall(r"updates\.py:(\d+): error: .*\[([a-z-]+)\]$", found, re.MULTILINE)
    assert wrong == [(str(line), "arg-type") for line in (5, 6, 7, 8)], found
