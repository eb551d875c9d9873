"""What a step that can still close waits for: something that hangs, groups that are filtered, or just time."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fsm.explain import class_name
from fsm.machines.trainer import TrainerState
from fsm.values import pages
from runtime.explain.finding import LEAST_S, Finding, RunVerdict, Usual, limit_s, seconds
from runtime.explain.situation import Situation
from runtime.trace.vitals import RunningAttempt
from runtime.wording import are, counted

OLDEST_SHOWN = 3
CLASSES_TRIED = 16
"""Up to so many running classes, find out which of them the step needs."""
_NEWLINE = "\n"
YOUNG_S = 1.0
"""No younger rollout counts as slow."""
STARVED_SHARE = 0.9
"""The share of filtered groups, of the last ones, from which the step starves."""

_OF_CALLS: Mapping[str, tuple[str, str]] = {
    "accumulate": ("the trainer has a chunk of step {0} and has not reported it trained", "trainer"),
    "finish_step": ("the trainer was asked for the optimizer step {0} and has not reported it done", "trainer"),
    "sync": ("the sync of version {0} has not ended: not every generation worker has loaded it", "sync"),
    "publish": ("the trainer was asked to publish version {0} and has not", "sync"),
    "load": ("the generation workers were asked to load version {0} and have not all done so", "sync"),
    "checkpoint": (
        "the checkpoint after step {0} waits for the one before to be written, or for the trainer to copy its state",
        "checkpoint",
    ),
    "evaluate": ("the validation at version {0} is not done", "validation"),
}
_INNERMOST = ("load", "publish", "evaluate", "checkpoint", "sync", "finish_step", "accumulate")
"""Calls, each before those that wait for it."""
_ADVICE = {
    "trainer": "look at the trainer's ranks (py-spy dump, nvidia-smi): one that died or hangs in a collective holds up "
    "all; kill the run and resume from its last checkpoint",
    "sync": "look at the generation workers and the transport of the weights: one worker that does not answer holds up "
    "all, until it is restarted (cluster.probe_timeout_s, sync_timeout_s); kill it to have that at once, or resume "
    "from the last checkpoint",
    "checkpoint": "look at the disk that checkpoints go to, and at the trainer's ranks",
    "validation": "look at the generation workers; shrink data.validation_size if this is usual",
}


class OpenCall(NamedTuple):
    """A call without an answer so far."""

    call: str
    said: str
    """The call, its age and the usual duration, in words."""
    hangs: bool


def open_call(situation: Situation) -> OpenCall | None:
    """The innermost open call; None if there is none."""
    calls = situation.vitals.calls
    call = next((call for call in _INNERMOST if call in calls), None)
    if call is None:
        return None
    number, since_s = calls[call]
    age_s = situation.age_s(since_s)
    usual = situation.usual_calls.get(call)
    what = _OF_CALLS[call][0].format(number)
    known = "the first of its kind" if usual is None else str(usual)
    hangs = age_s > limit_s(usual, situation.stall_timeout_s)
    return OpenCall(call, f"{what}, for {seconds(age_s)} ({known})", hangs)


def stalled(situation: Situation) -> Finding | None:
    """An open call, all workers, or rollouts that the step needs do not answer."""
    call = open_call(situation)
    if call is not None and call.hangs:
        return Finding(RunVerdict.STALLED, (call.said,), _ADVICE[_OF_CALLS[call.call][1]])
    if situation.state.trainer.status is TrainerState.ASSEMBLING:
        return _dead_workers(situation) or _hanging_rollouts(situation)
    return None


def _dead_workers(situation: Situation) -> Finding | None:
    workers = situation.vitals.workers
    if not workers or any(worker.alive for worker in workers.values()):
        return None
    last_s = max(worker.since_s for worker in workers.values())
    listed = "; ".join(
        f"{name} for {seconds(situation.age_s(worker.since_s))}, {worker.reason.partition(_NEWLINE)[0]}"
        for name, worker in sorted(workers.items())[:8]
    )
    in_flight = situation.state.sheet.in_flight
    all_dead = "the one generation worker is" if len(workers) == 1 else f"all {len(workers)} generation workers are"
    return Finding(
        RunVerdict.STALLED,
        (
            f"{counted(in_flight, 'group')} in flight, and no worker is left to generate any",
            f"{all_dead} dead, the last for {seconds(situation.age_s(last_s))}: {listed}",
        ),
        "find out why the workers died (memory, the node, the driver) and why none was restarted: Ray has no "
        "resources for them, or they die at their start. Then resume from the last checkpoint",
    )


def _hanging_rollouts(situation: Situation) -> Finding | None:
    """Rollouts that the step needs, far past the usual time or past their deadline."""
    most_s = limit_s(situation.usual_rollout, situation.stall_timeout_s)
    if situation.deadline_s is not None:
        most_s = min(most_s, max(1.1 * situation.deadline_s, situation.deadline_s + LEAST_S))
    hanging = [one for one in situation.vitals.rollouts.values() if situation.age_s(one.started_s) > most_s]
    held = Counter(known for one in hanging if (known := situation.class_of(one)) is not None)
    if not held or situation.closes_without(held):
        return None
    deadline = situation.deadline_s
    what = "no deadline" if deadline is None else f"rollout_timeout_s is {deadline:g} s"
    return Finding(
        RunVerdict.STALLED,
        (
            f"{len(hanging)} of {len(situation.vitals.rollouts)} running rollouts {are(len(hanging))} far older "
            f"than usual, and the step cannot close without {'it' if len(hanging) == 1 else 'them'}",
            _oldest(situation, hanging, f"; {what}"),
        ),
        "set async_rl.rollout_failure.rollout_timeout_s, so that a rollout that hangs fails and is retried"
        if deadline is None
        else "the deadline has passed and nothing enforced it: check whether the process still runs, and resume",
    )


def _oldest(situation: Situation, rollouts: Iterable[RunningAttempt], more: str = "") -> str:
    """The oldest of some rollouts, each with prompt, worker and age, and the usual time."""
    oldest = sorted(rollouts, key=lambda rollout: rollout.started_s)[:OLDEST_SHOWN]
    said = []
    for rollout in oldest:
        where = "placed on no worker" if rollout.worker is None else f"on {rollout.worker}"
        worker = None if rollout.worker is None else situation.vitals.workers.get(rollout.worker)
        dead = " (which is dead)" if worker is not None and not worker.alive else ""
        attempt = rollout.attempt
        said.append(
            f"prompt {attempt.prompt} (dispatch {attempt.dispatch}, slot {rollout.slot}, start weight "
            f"{rollout.start_weight}) {where}{dead} for {seconds(situation.age_s(rollout.started_s))}"
        )
    usual = situation.usual_rollout
    known = "no group has finished yet" if usual is None else f"rollouts that finished: {usual}"
    return f"{'; '.join(said)} ({known}{more})"


def starved(situation: Situation) -> Finding | None:
    """Dynamic sampling filters nearly every group that finishes."""
    recent = situation.vitals.recent
    if not situation.limits.dynamic_sampling or len(recent) < situation.limits.size:
        return None
    share = sum(finished.filtered for finished in recent) / len(recent)
    if share < STARVED_SHARE:
        return None
    filtered = [finished for finished in recent if finished.filtered]
    right = sum(finished.verdict == "all_right" for finished in filtered)
    wrong = sum(finished.verdict == "all_wrong" for finished in filtered)
    rest = len(filtered) - right - wrong
    other = f", {rest / len(recent):.0%} equal otherwise" if rest else ""
    easy = "too easy" if right >= wrong else "too hard"
    return Finding(
        RunVerdict.STARVED,
        (
            f"groups finish, and dynamic sampling filters {share:.0%} of them",
            f"of the last {counted(len(recent), 'group')} {right / len(recent):.0%} are all right and "
            f"{wrong / len(recent):.0%} all wrong{other}: their rewards are all equal, so there is "
            "nothing to learn from them",
        ),
        f"the data is {easy} for the policy as it is: mix in {'harder' if right >= wrong else 'easier'} prompts, raise "
        "num_generations_per_prompt or the temperature, give partial rewards, or bound the search with "
        "dynamic_sampling_max_gen_batches",
    )


def needed_rollouts(situation: Situation) -> list[RunningAttempt]:
    """Running rollouts of the classes that the step needs; all, if it can close without any one class."""
    rollouts = list(situation.vitals.rollouts.values())
    running = list(pages.items(situation.state.running))
    if len(running) > CLASSES_TRIED:
        return rollouts
    needed = {group_class for group_class, groups in running if not situation.closes_without({group_class: groups})}
    return [one for one in rollouts if situation.class_of(one) in needed] or rollouts


def waiting(situation: Situation) -> Finding:
    """Nothing is wrong: slow if a rollout is older than the usual median, else healthy."""
    call = open_call(situation)
    if situation.state.trainer.status is not TrainerState.ASSEMBLING:
        said = "the trainer is busy" if call is None else call.said
        return Finding(RunVerdict.HEALTHY, (said,), "nothing: calls are answered within their usual times")
    if not situation.vitals.rollouts:
        return _between_attempts(situation)
    rollouts = needed_rollouts(situation)
    oldest_s = max(situation.age_s(rollout.started_s) for rollout in rollouts)
    usual = situation.usual_rollout
    half_s = LEAST_S if usual is None else max(usual.median_s, YOUNG_S)
    classes = sorted({class_name(known) for one in rollouts if (known := situation.class_of(one)) is not None})
    chain = (
        f"the step needs {len(rollouts)} running rollouts ({'; '.join(classes[:4])})",
        f"the oldest rollouts, {_compared(oldest_s, usual)}: {_oldest(situation, rollouts)}",
    )
    if oldest_s <= half_s:
        return Finding(RunVerdict.HEALTHY, chain, "nothing: rollouts are within their usual time")
    beyond = usual is not None and oldest_s > max(usual.p99_s, YOUNG_S)
    wrong = f"it counts as stalled from {seconds(usual.limit_s)} on" if usual and beyond else "nothing is wrong"
    return Finding(
        RunVerdict.SLOW,
        chain,
        f"{wrong}; to wait less, shorten max_new_tokens or the verifier's time, add generation workers, or let "
        "dispatch lead further (a larger window)",
    )


def _compared(oldest_s: float, usual: Usual | None) -> str:
    """An age beside those of the rollouts that finished."""
    if usual is None:
        return "the first of the run"
    if oldest_s <= max(usual.p99_s, YOUNG_S):
        return "within the usual range"
    return f"older than usual (99 % took at most {seconds(usual.p99_s)})"


def _between_attempts(situation: Situation) -> Finding:
    backoffs = sorted(situation.vitals.backoffs.values(), key=lambda backoff: backoff.since_s + backoff.delay_s)
    if not backoffs:
        return Finding(
            RunVerdict.HEALTHY,
            ("attempts wait to start, and start with the next event",),
            "nothing: the groups that the step needs are about to start",
        )
    first = backoffs[0]
    left_s = first.since_s + first.delay_s - situation.now_s
    late_s = max(0.0, -left_s)
    said = (
        f"{counted(len(backoffs), 'group')} back off after failed attempts; the first, prompt {first.attempt.prompt}, "
        f"{'is tried again in ' + seconds(max(0.0, left_s)) if not late_s else 'was due ' + seconds(late_s) + ' ago'}"
    )
    if late_s > LEAST_S:
        return Finding(
            RunVerdict.STALLED, (said,), "the runtime's clock does not run: check whether its process still lives"
        )
    return Finding(RunVerdict.SLOW, (said,), "find out why attempts fail: evenstep trace --kind GroupFailed")
