"""Whatever a model, a property or a sampler does, what is remembered judges it as the plain functions do."""

import copy
import pickle

import numpy as np
import pytest

from fsm.errors import SamplerError
from fsm.machines.table import fire
from fsm.rules import on_event, own_moves
from fsm.rules.laws import laws_of
from fsm.rules.own_moves import next_move
from fsm.samplers.builtin import ReadyFirst
from fsm.state import is_over
from fsm.values import pages
from specs.checker.explore import HOLDS, VIOLATED, explore
from specs.counterexample import Unconfirmed
from specs.engine import lookup
from specs.engine.parts import Parts
from specs.engine.reading import Reading
from specs.engine.rows import RowSet
from specs.evidence.mutants.mutant import Mutant, Swap, in_place
from specs.model import CORE, Answer, CrashFrom, WorldOptions, canonical, possible
from specs.properties.catalog import EVENTUALLY, properties_of
from specs.properties.kinds import REFUSED, Always, Edge, Properties
from tests.specs.checker.small_runs import laws

RUN = laws("ready_first", 2, 1, 1, "shrink", 4)


def verdict(result):
    return result.verdict, result.broken, len(result.counterexample)


def explored(run=RUN, properties=None, model=CORE, swap=None, world=WorldOptions()):  # noqa: B008  (a NamedTuple)
    swaps = () if swap is None else (Swap(*swap),)
    with in_place(Mutant("", "", "", swaps)):
        return explore(run, world, properties_of(run) if properties is None else properties, model=model)


def under(sampler):
    """The run's laws with a sampler of one's own."""
    return laws_of(RUN.limits, sampler, "sampler of a test", fire)


def test_own_moves_that_change_something_and_do_not_say_so_are_judged():
    def settle(state, run):
        moved, done = own_moves.settle(state, run)
        silent = moved.sheet.ready == 1 and not done and not is_over(moved)
        return (moved._replace(sheet=moved.sheet._replace(trained=1)) if silent else moved), done

    assert verdict(explored(model=CORE._replace(settle=settle))) == (VIOLATED, "sheet", 2)


def test_a_property_may_compare_whole_states():
    same = Edge("same", "late changes nothing", (), lambda t, _: t.answer.name != "late" or t.before == t.after)
    other = Edge("other", "all change something", (), lambda t, _: t.answer.name == "crash" or t.before != t.after)

    assert explored(properties=Properties(edges=(same,))).verdict == HOLDS
    assert verdict(explored(properties=Properties(edges=(other,)))) == (VIOLATED, "other", 2)


def test_an_answer_of_an_attempt_that_there_is_not_is_refused_with_that_answer():
    def more(state, run, world):
        yield from possible(state, run, world)
        for group_class, _ in pages.items(state.ready):
            yield Answer("commit", group_class)

    result = explored(model=CORE._replace(possible=more))

    assert verdict(result) == (VIOLATED, REFUSED, 5)
    assert result.counterexample[-1].name == "commit"


@pytest.mark.parametrize("ready", [0, 1])
def test_a_model_that_fails_to_say_what_may_come_is_refused_in_that_state(ready):
    def fails(state, run, world):
        if state.sheet.ready == ready:
            raise KeyError("nobody knows")
        yield from possible(state, run, world)

    result = explored(model=CORE._replace(possible=fails))

    assert verdict(result) == (VIOLATED, REFUSED, 2 * ready)
    assert result.why == "'nobody knows'"


@pytest.mark.parametrize("ready", [0, 1])
@pytest.mark.parametrize("kind", ["always", "edges"])
def test_a_property_that_fails_is_no_verdict(ready, kind):
    def holds(state):
        if state.sheet.ready == ready:
            raise ValueError("nobody knows")
        return True

    fails = {
        "always": Always("fails", "fails", (), lambda state, _: holds(state)),
        "edges": Edge("fails", "fails", (), lambda transition, _: holds(transition.after)),
    }

    with pytest.raises(ValueError, match="nobody knows"):
        explored(properties=Properties()._replace(**{kind: (fails[kind],)}))


def test_a_property_may_fail_of_a_transition_that_there_is_not():
    settled = {True: True}
    edge = Edge("settled", "the core's own moves are made", (), lambda t, run: settled[next_move(t.after, run) is None])

    assert explored(properties=Properties(edges=(edge,))).verdict == HOLDS


def test_a_property_may_catch_all_that_it_meets():
    def runs_out(transition, _):
        try:
            return transition.answer.name != "late" or pages.total(transition.before.running) == 0
        except Exception:
            return True

    edge = Edge("runs_out", "late answers come when nothing runs", (), runs_out)

    assert verdict(explored(properties=Properties(edges=(edge,)))) == (VIOLATED, "runs_out", 2)


def test_a_start_that_is_refused_is_refused_with_the_answer_that_it_follows():
    add = pages.add

    def refuses(counts, key, groups):
        added = add(counts, key, groups)
        if groups > 0 and pages.total(added) >= 2 and any(key.start_weight == 1 for key, _ in pages.items(added)):
            raise ValueError("no")
        return added

    world = WorldOptions(crash=CrashFrom.NOTHING)
    assert verdict(explored(swap=(pages, "add", refuses), world=world)) == (VIOLATED, REFUSED, 7)


@pytest.mark.parametrize("bits", [4, 8])
def test_states_are_told_apart_whatever_their_hashes_are(bits, monkeypatch):
    hashed = RowSet.hashed
    run = laws("in_order", 1, 1, 1, "replace", 3)
    whole = explored(run)
    monkeypatch.setattr(lookup, "_FEW", 0)
    monkeypatch.setattr(RowSet, "hashed", lambda rows, given: hashed(rows, given) & np.uint64(((1 << bits) - 1) << 56))

    assert explored(run)._replace(seconds=0.0) == whole._replace(seconds=0.0)


def test_a_crash_that_leads_to_no_other_state_is_among_the_answers_that_occurred():
    run = laws("in_order", 1, 0, 1, "shrink", 1)
    calm = WorldOptions(fails=False, claims_fail=False, late=False)

    assert "crash" in explored(run, world=calm).answers


def test_a_sampler_is_shown_the_groups_that_run_as_what_they_are():
    class Looks(ReadyFirst):
        def select(self, view, least, most):
            if isinstance(view.running, tuple) and view.version == 1 and not view.running:
                raise ValueError("none runs")
            return super().select(view, least, most)

    calm = WorldOptions(fails=False, claims_fail=False, late=False, crash=CrashFrom.NOTHING)

    assert verdict(explored(under(Looks(1)), world=calm)) == (VIOLATED, "sampler", 8)


def test_an_attempt_that_ends_with_more_than_itself_is_judged_by_all_that_it_changes():
    ends = {"commit", "filter", "back_off", "drop", "skip"}

    def pulls(state, run, given):
        moved, done = CORE.answer(state, run, given)
        more = moved._replace(sheet=moved.sheet._replace(pulled=moved.sheet.pulled + 1))
        return (more if given.name in ends else moved), done

    def refuses(state, run, given):
        if given.name in ends and state.sheet.ready:
            raise ValueError("no")
        return CORE.answer(state, run, given)

    assert verdict(explored(model=CORE._replace(answer=pulls))) == (VIOLATED, "sheet", 1)
    assert verdict(explored(model=CORE._replace(answer=refuses))) == (VIOLATED, REFUSED, 3)


def test_a_resume_that_does_something_else_is_judged():
    def loses_ready(state, run):
        resumed, done = on_event.resume(state, run)
        return resumed._replace(ready=()), done

    assert verdict(explored(model=CORE._replace(resume=lambda state, _: (state, [])))) == (VIOLATED, "resumed", 1)
    assert verdict(explored(model=CORE._replace(resume=loses_ready))) == (VIOLATED, "columns", 2)


def test_a_crash_that_a_model_has_in_a_world_without_one_resumes_from_its_own_snapshot():
    calm = WorldOptions(fails=False, backs_off=False, claims_fail=False, late=False, crash=CrashFrom.NOTHING)

    def crashes(state, run, world):
        yield from possible(state, run, world._replace(crash=CrashFrom.OWN_SNAPSHOT))

    result = explored(model=CORE._replace(possible=crashes), world=calm)

    own = explored(world=calm._replace(crash=CrashFrom.OWN_SNAPSHOT))
    assert (result.states, result.transitions) == (own.states, own.transitions)


class Copies(ReadyFirst):
    """Looks at a copy of what it is shown, and fails where something backs off under version 1."""

    def select(self, view, least, most):
        seen = self.copied(view)
        if seen.version == 1 and view_backs_off(seen):
            raise SamplerError("looked")
        return super().select(view, least, most)


def view_backs_off(view):
    return bool(view._state.backing_off)


@pytest.mark.parametrize(
    "copied", [lambda view: view, copy.copy, copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))],
    ids=["itself", "copy", "deepcopy", "pickle"],
)  # fmt: skip
def test_a_sampler_that_looks_at_a_copy_has_looked(copied):
    plain, copying = Copies(1), Copies(1)
    plain.copied, copying.copied = lambda view: view, copied

    result = explored(under(copying))

    assert verdict(result) == verdict(explored(under(plain)))
    assert (result.verdict, result.broken) == (VIOLATED, "sampler")


def test_a_copy_of_what_nobody_has_looked_at_is_the_value():
    parts = Parts()
    reading = Reading(parts)
    state = canonical(CORE.begin(RUN))
    assert copy.deepcopy(reading.open(parts.pack(state))) == state
    assert reading.mask


def test_a_sampler_that_answers_now_this_and_now_that_is_told_so():
    class Moody(ReadyFirst):
        calls = 0

        def select(self, view, least, most):
            Moody.calls += 1
            return super().select(view, least, most) if Moody.calls % 3 else ()

    with pytest.raises(Unconfirmed, match=r"sampler of a test gave different answers for the same view"):
        explored(under(Moody(1)))


def test_a_sampler_that_fails_before_the_first_event_is_told_as_what_it_is():
    class Fails(ReadyFirst):
        def admit(self, view):
            raise SamplerError("not today")

    assert verdict(explored(under(Fails(1)))) == (VIOLATED, "sampler", 0)


def test_more_properties_than_a_transition_has_bits_for_are_refused():
    ends = EVENTUALLY[1]
    nine = tuple(ends._replace(name=f"ends {number}") for number in range(9))

    with pytest.raises(ValueError, match="9 eventually properties; at most 8"):
        explored(properties=Properties(eventually=nine))
