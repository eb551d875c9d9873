"""docs/generated/rules_to_tests.md leads from every rule to what shows it."""

import re

import pytest

from tests.docs.rules_to_tests import DOCUMENT, by_properties, by_scenarios, by_tests, cited_in, document, rules

RULES, SCENARIOS, TESTS = rules(), by_scenarios(), by_tests()


def test_the_page_is_what_the_citations_make_of_it() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "stale: run `make docs`"


def test_the_rules_are_numbered_without_a_gap() -> None:
    letters = "".join(dict.fromkeys(rule[0] for rule in RULES))
    assert letters == "ADSELPXWC"
    for letter in letters:
        numbers = [int(rule[1]) for rule in RULES if rule[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_scenario_or_a_test(rule: str) -> None:
    assert SCENARIOS[rule] or TESTS[rule], f"cite {rule} in the `source` of a scenario or in a test's docstring"


def test_every_property_cites_rules_that_there_are() -> None:
    assert set(by_properties()) <= set(RULES)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("L3, L4: charged", {"L3", "L4"}), ("S1 to S3", {"S1", "S2", "S3"}), ("rules A1 … X4", set()), ("FSDP2", set())],
)
def test_a_citation_is_a_number_or_a_range(text: str, numbers: set[str]) -> None:
    assert cited_in(text) == numbers


def test_every_number_that_the_documents_cite_is_a_rule() -> None:
    for file in [DOCUMENT.parents[2] / "README.md", *DOCUMENT.parents[1].rglob("*.md")]:
        cited = set(re.findall(r"\(([ADSELPXWC][1-9])\)", file.read_text(encoding="utf-8")))
        assert cited <= set(RULES), file.name
