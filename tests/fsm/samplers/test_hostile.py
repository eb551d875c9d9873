"""A custom sampler that is wrong is stopped with an error that names it and the method, whatever it does."""

import pytest

from fsm.config import sampler_loading
from fsm.config.parse import parse_config
from fsm.errors import ConfigError, SamplerError
from fsm.events import FailureKind
from fsm.samplers.builtin import ReadyFirst
from fsm.samplers.protocol import Admission
from fsm.state import GroupClass
from specs.scenarios.world import World


class Well(ReadyFirst):
    """A well-behaved custom sampler; each hostile one differs in one method."""

    def __init__(self) -> None:
        super().__init__(1)


def raises(*_):
    raise RuntimeError("boom")


def ready(view):
    return view.ready_classes()


def world(monkeypatch, **methods) -> World:
    """A run of two groups a step under a hostile sampler, one drop in a row allowed."""
    hostile = type("Hostile", (Well,), methods)
    monkeypatch.setattr(sampler_loading, "load_custom", lambda config: hostile())
    config = parse_config(
        {
            "grpo": {"num_prompts_per_step": 2},
            "async_rl": {
                "sampler": {"name": "custom", "target": "hostile:Hostile"},
                "rollout_failure": {
                    "max_infra_attempts_per_prompt": 1,
                    "max_consecutive_dropped_prompts": 4,
                    "min_step_batch_fraction": 0.5,
                },
            },
        }
    )
    return World(config, num_prompts=8)


def play(run: World) -> None:
    """Lose a group, then finish what is in flight and close what can be closed, as long as anything happens."""
    if not run.over and 1 in run.core.book.roster.in_flight:
        run.drop(1, FailureKind.INFRA)
    for _ in range(20):
        for prompt in list(run.core.book.roster.in_flight):
            if not run.over and prompt in run.core.book.roster.in_flight:
                run.commit(prompt)
        while not run.over and run.status in ("training", "finishing", "syncing"):
            run.close()
        if run.over or run.status == "deadlocked":
            return


WRONG = {
    "admit": [
        raises, lambda s, v: (1, 2), lambda s, v: True, lambda s, v: Admission(target_step="x"),
        lambda s, v: Admission(target_step=0.5), lambda s, v: Admission(bucket="x"),
        lambda s, v: Admission(target_step=-1),
    ],
    "select": [
        raises, lambda s, v, a, b: None, lambda s, v, a, b: [1, 2], lambda s, v, a, b: [c for c, _ in ready(v)],
        lambda s, v, a, b: [(c, "1") for c, _ in ready(v)], lambda s, v, a, b: [(c, float(n)) for c, n in ready(v)],
        lambda s, v, a, b: [(c, True) for c, _ in ready(v)], lambda s, v, a, b: [("x", 1)],
        lambda s, v, a, b: [([1], 1)], lambda s, v, a, b: [(tuple(c), n) for c, n in ready(v)],
        lambda s, v, a, b: [(GroupClass(9, 9, 9), 1)], lambda s, v, a, b: [(c, n + 5) for c, n in ready(v)],
        lambda s, v, a, b: [(c, 0) for c, _ in ready(v)], lambda s, v, a, b: [(c, -1) for c, _ in ready(v)],
        lambda s, v, a, b: [(c, 1) for c, _ in ready(v)] * 2,
    ],
    "evict": [
        raises, lambda s, v: None, lambda s, v: 3, lambda s, v: ["x"], lambda s, v: [[1]],
        lambda s, v: [GroupClass(9)], lambda s, v: ready(v),
    ],
    "should_abort_inflight": [raises, lambda s, v, c: "no", lambda s, v, c: 1, lambda s, v, c: None],
    "charge_step_for_lost_group": [
        raises, lambda s, t, a: "0", lambda s, t, a: 0.5, lambda s, t, a: 1.0, lambda s, t, a: True,
        lambda s, t, a: [0], lambda s, t, a: -1, lambda s, t, a: 10**9,
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "number"), [(method, number) for method, wrong in WRONG.items() for number in range(len(wrong))]
)
def test_l4_what_it_answers_wrongly_stops_the_run_and_names_it(monkeypatch, method, number):
    run = world(monkeypatch, **{method: WRONG[method][number]})

    play(run)

    assert run.status == "stopped"
    assert isinstance(run.core.error, SamplerError)
    assert "custom hostile:Hostile" in str(run.core.error)
    assert method in str(run.core.error)


def ends_the_process(*_):
    raise SystemExit(0)


ASKED = ["admit", "select", "evict", "should_abort_inflight", "charge_step_for_lost_group", "label"]


@pytest.mark.parametrize("method", ASKED)
def test_a_sampler_that_would_end_the_process_stops_the_run_as_any_other_error_does(monkeypatch, method):
    run = world(monkeypatch, **{method: ends_the_process, "labels": 2})

    play(run)

    assert run.status == "stopped"
    assert isinstance(run.core.error, SamplerError)
    assert f"custom hostile:Hostile: {method} raised SystemExit: 0" in str(run.core.error)


@pytest.mark.parametrize("method", ASKED)
def test_ctrl_c_while_a_sampler_is_asked_is_its_users(monkeypatch, method):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(world(monkeypatch, **{method: interrupted, "labels": 2}))


def test_x2_a_gated_sampler_that_charges_nothing_is_told_so_at_the_end(monkeypatch):
    run = world(monkeypatch, charge_step_for_lost_group=lambda s, t, a: None)

    play(run)

    assert run.status == "deadlocked"
    assert "neither in hand nor charged to any step" in run.core.waits_for()


def test_x2_a_gated_sampler_that_aborts_is_to_blame_for_the_slots_that_are_missing(monkeypatch):
    run = world(monkeypatch, should_abort_inflight=lambda s, v, c: v.version == 1)

    run.commit(0)
    run.commit(1)
    run.close()  # 2 and 3 are aborted: a whole step's slots
    assert run.core.state.sheet.aborted == 2
    play(run)

    assert isinstance(run.core.error, SamplerError)
    assert "(X2)" in str(run.core.error)


def test_a_sampler_that_never_selects_leaves_a_deadlock_that_names_it(monkeypatch):
    run = world(monkeypatch, select=lambda s, v, a, b: ())

    play(run)

    assert run.status == "deadlocked"
    assert "custom hostile:Hostile selects none" in run.core.waits_for()


class Duck:
    """A sampler that derives from nothing, with labels."""

    labels = 2

    def label(self, record):
        return 1

    def admit(self, view):
        return Admission() if view.dispatch_index < view.version + 1 else None

    def select(self, view, min_groups, max_groups):
        [(group_class, groups)] = ready(view)
        assert group_class.label == 1
        return [(group_class, min(groups, max_groups))] if groups >= min_groups else []

    def evict(self, view):
        return ()

    def should_abort_inflight(self, view, group_class):
        return False

    is_on_policy = False

    def required_buffer_capacity(self, groups_per_step):
        return 2 * groups_per_step


def test_a_sampler_that_derives_from_nothing_is_used_with_its_labels(monkeypatch):
    monkeypatch.setattr(sampler_loading, "load_custom", lambda config: Duck())
    document = {"grpo": {"num_prompts_per_step": 2}, "async_rl": {"sampler": {"name": "custom", "target": "d:Duck"}}}
    run = World(parse_config(document), num_prompts=4)

    for prompt in (1, 0):
        run.commit(prompt)
    run.close()

    assert run.core.state.sheet.trained == 2


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("required_buffer_capacity", lambda s, n: "x"),
        ("required_buffer_capacity", lambda s, n: 4.5),
        ("required_buffer_capacity", lambda s, n: -3),
        ("required_buffer_capacity", raises),
        ("is_on_policy", property(raises)),
        ("is_on_policy", "no"),
        ("uses_replacement_pool", "no"),
        ("closes_short_at_exhaustion", 1),
    ],
)
def test_nonsense_at_setup_is_the_users_configuration_to_correct(monkeypatch, attribute, value):
    with pytest.raises(ConfigError, match="custom hostile:Hostile"):
        world(monkeypatch, **{attribute: value})
