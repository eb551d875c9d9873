"""`fsm.values.evolve`: what `_replace` does, without its detours."""

from __future__ import annotations

import pytest

from fsm.state import State
from fsm.values.evolve import evolver


def test_an_evolver_puts_the_new_values_into_its_fields_and_keeps_the_others() -> None:
    state = State()
    evolved = evolver(State, "ready", "chunk")(state, ("a",), ("b",))
    assert evolved == state._replace(ready=("a",), chunk=("b",))  # type: ignore[arg-type]
    assert type(evolved) is State


@pytest.mark.parametrize("fields", [("reddy",), ("ready", "ready")])
def test_an_evolver_of_an_unknown_or_repeated_field_is_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="State has the fields"):
        evolver(State, *fields)
