"""`fsm.config.strict`: what plain YAML would silently take otherwise."""

from contextlib import suppress

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm.config.parse import parse_config
from fsm.config.strict import load_yaml
from fsm.errors import ConfigError


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("-2E5", -2e5), (".5e1", 5.0), ("3.e2", 300.0)])
def test_a_number_with_an_exponent_is_a_number(text: str, value: float) -> None:
    assert load_yaml(text) == value


@pytest.mark.parametrize("text", ["1e", "e5", "1e-4x", "1.0.0e3"])
def test_what_only_looks_like_one_stays_text(text: str) -> None:
    assert load_yaml(text) == text


def test_a_key_given_twice_is_named_with_its_line() -> None:
    with pytest.raises(yaml.YAMLError, match=r"(?s)max_num_steps is given twice.*line 3"):
        load_yaml("grpo:\n  max_num_steps: 1\n  max_num_steps: 2\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "9" * 5000, "cannot be read as tag:yaml.org,2002:int"),
        ("a: 0x" + "f" * 4000, "more than 100 digits"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: !!int abc", "invalid literal for int"),
        ("a: !!bool nope", "cannot be read as tag:yaml.org,2002:bool"),
        ("a: !!timestamp never", "cannot be read as tag:yaml.org,2002:timestamp"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ('a: "\\ud800"', "half of a pair"),
        ('a: "\\0"', "such as NUL"),
        ("? [1, 2]\n: 3", "cannot be a key"),
        ("a: &a [*a]", "a block holds itself"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_with_its_line(text: str, says: str) -> None:
    with pytest.raises(yaml.YAMLError, match="line 1") as refused:
        load_yaml(text)
    assert says in str(refused.value)


def aliases(form: str, levels: int = 40) -> str:
    """Lines each of which stands for nine times the one before."""
    lines = [
        "l0: &l0 {a: 1}",
        *(f"l{n}: &l{n} " + form.format(", ".join([f"*l{n - 1}"] * 9)) for n in range(1, levels)),
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (aliases("[{}]"), "aliases unfolded; at most 50000"),
        (aliases("{{<<: [{}]}}"), "aliases unfolded; at most 50000"),
        ("[" * 100_000, "nested deeper than 100 levels"),
        ("a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 200)), "nested deeper than 100 levels"),
        ("".join(f"k{number}: 1\n" for number in range(60_000)), "more than 50000 values"),
        ("x" * 1_000_001, "more than 1000000 characters"),
    ],
)
def test_a_document_that_would_fill_the_memory_or_the_stack_is_refused(text: str, says: str) -> None:
    with pytest.raises(yaml.YAMLError, match=says):
        load_yaml(text)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=12,
)
BLOCKS = st.sampled_from(["grpo", "async_rl", "loss_fn", "policy", "sampler", "rollout_failure", "name", "x"])


@settings(deadline=None)
@given(st.text(alphabet="ab: -[]{}&*!|>?'\"#%@\n\t1.e", max_size=40))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    with suppress(yaml.YAMLError):
        load_yaml(text)


@settings(deadline=None)
@given(st.dictionaries(BLOCKS, st.dictionaries(BLOCKS, ODD, max_size=3) | ODD, max_size=4))
def test_any_document_is_a_configuration_or_refused(document: dict[str, object]) -> None:
    with suppress(ConfigError):
        parse_config(document)
