"""`fsm.config.strict`: what plain YAML would silently take otherwise."""

import pytest
import yaml

from fsm.config.strict import load_yaml


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("-2E5", -2e5), (".5e1", 5.0), ("3.e2", 300.0)])
def test_a_number_with_an_exponent_is_a_number(text: str, value: float) -> None:
    assert load_yaml(text) == value


@pytest.mark.parametrize("text", ["1e", "e5", "1e-4x", "1.0.0e3"])
def test_what_only_looks_like_one_stays_text(text: str) -> None:
    assert load_yaml(text) == text


def test_a_key_given_twice_is_named_with_its_line() -> None:
    with pytest.raises(yaml.YAMLError, match=r"(?s)max_num_steps is given twice.*line 3"):
        load_yaml("grpo:\n  max_num_steps: 1\n  max_num_steps: 2\n")
