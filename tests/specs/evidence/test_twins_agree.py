"""The core and its twins for SPIN and TLC count the same states and transitions; a twin that breaks a rule does not."""

import pytest

from specs.evidence.small_run import SmallRun
from specs.evidence.twins import spin, tlc
from specs.evidence.twins.__main__ import main
from specs.evidence.twins.compare import CONFIGURATIONS, Twin, rows
from specs.evidence.twins.counts import Counts, ToolFailed, count_core
from specs.evidence.twins.parameters import constants, header, parameters
from specs.model import WorldOptions

SMALL = SmallRun(
    "small", "in_order", 2, 1, 5, WorldOptions(late=False),
    async_rl={"min_groups_for_streaming_train": 1},
    rollout_failure={"max_consecutive_dropped_prompts": 2},
)  # fmt: skip
needs_spin = pytest.mark.skipif(spin.missing() is not None, reason=str(spin.missing()))
needs_tlc = pytest.mark.skipif(tlc.missing() is not None, reason=str(tlc.missing()))

BROKEN_IN_SPIN = [
    ("L3", "SAMPLER == IN_ORDER -> step = home", "SAMPLER == IN_ORDER -> step = version"),
    ("L6", "N - charged[version] < FLOOR", "N - charged[version] <= FLOOR"),
    ("L7", "spent > budget", "spent >= budget"),
    ("A1", "batches <= version + WINDOW", "batches < version + WINDOW"),
    ("S1", "(MIN_GROUPS < want -> MIN_GROUPS : want)", "want"),
    ("D2", "trainer == SYNCING\n", "false\n"),
]


def told_by_spin(model: dict[str, str]) -> object:
    """The counts of a model, or the assertion of its own that it violates."""
    try:
        return spin.count(parameters(SMALL), model)[:2]
    except ToolFailed as failed:
        if "assertion violated" not in str(failed):
            raise
        return str(failed)


def wrong_by_one(_: object) -> Counts:
    counts = count_core(SMALL)
    return counts._replace(transitions=counts.transitions + 1)


def fails(_: object) -> Counts:
    raise ToolFailed("SPIN: ./pan exited 1 and printed nothing")


def is_there() -> None:
    return None


def is_missing() -> str:
    return "SPIN cannot run: spin not found. Install with: apt-get install spin gcc"


@needs_spin
def test_spin_counts_what_the_core_has():
    assert spin.count(parameters(SMALL))[:2] == count_core(SMALL)[:2]


@needs_tlc
def test_tlc_counts_what_the_core_has():
    assert tlc.count(parameters(SMALL))[:2] == count_core(SMALL)[:2]


@needs_spin
@pytest.mark.parametrize(("rule", "right", "wrong"), BROKEN_IN_SPIN, ids=[case[0] for case in BROKEN_IN_SPIN])
def test_a_twin_that_breaks_a_rule_is_told_by_its_counts_or_its_assertions(rule, right, wrong):
    broken = {name: text.replace(right, wrong) for name, text in spin.MODEL.items()}
    assert broken != spin.MODEL, f"{rule} reads otherwise now"

    assert told_by_spin(broken) != count_core(SMALL)[:2]


@needs_spin
def test_spin_that_cannot_search_all_is_no_agreement(monkeypatch):
    monkeypatch.setattr(spin, "DEPTH", 10)

    with pytest.raises(ToolFailed, match="max search depth too small"):
        spin.count(parameters(SMALL))


def test_one_transition_more_is_a_difference(capsys):
    twin = Twin("SPIN", is_there, wrong_by_one)

    assert [row.agrees for row in rows([SMALL], [twin])] == [True, False]
    assert main([], [twin], [SMALL]) == 2
    assert "DIFFERS" in capsys.readouterr().out


def test_a_tool_that_fails_is_no_agreement(capsys):
    assert main(["--allow-missing"], [Twin("SPIN", is_there, fails)], [SMALL]) == 1
    assert "./pan exited 1" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "status"), [([], 1), (["--allow-missing"], 0)])
def test_without_any_tool_nothing_passes_unless_that_is_allowed(capsys, arguments, status):
    assert main(arguments, [Twin("SPIN", is_missing, fails)], [SMALL]) == status
    said = capsys.readouterr().out
    assert "apt-get install spin" in said
    assert ("skipped" in said) == (status == 0)


def test_a_tool_that_is_missing_is_named_and_the_other_compared(capsys):
    twins = [Twin("SPIN", is_missing, fails), Twin("TLC", is_there, lambda _: count_core(SMALL))]

    assert main([], twins, [SMALL]) == 0
    said = capsys.readouterr().out
    assert "spin not found" in said
    assert "1 comparisons, no difference" in said


def test_no_configuration_of_that_name_is_no_agreement(capsys):
    assert main(["--only", "nowhere"], [Twin("SPIN", is_there, fails)], [SMALL]) == 1
    assert "there are: small" in capsys.readouterr().out


def test_every_built_in_sampler_is_compared():
    samplers = {run.config().async_rl.sampler.name for run in CONFIGURATIONS}

    assert samplers == {"in_order", "ready_first", "weight_fifo", "windowed"}


def test_a_limit_that_is_not_there_is_written_as_each_tool_reads_it():
    known = parameters(SMALL)

    assert "#define MAX_STEPS -1\n" in header(known)
    assert "\nMAX_STEPS = NONE\n" in constants(known)
    assert "\nN = 2\n" in constants(known)
