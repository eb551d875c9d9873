"""The run of one seed: started, struck, resumed as a user would, and judged.

trial = tried(drawn(7), Place(folder, model), References(...))
assert trial.wrong == []
"""

import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints
from runtime.files import sha256_of
from runtime.output.directory import FINAL_MODEL
from runtime.trace.files import find_trace
from runtime.trace.replay import replay
from tests.chaos.live import LiveRun, left_by, started, summary_of, trained_prompts
from tests.chaos.plan import STEPS, Plan, Shape
from tests.chaos.strikes import NotMet, carry_out, lasting
from tests.runtime.ray.helpers import adds_up

RESUMES = 5
"""Most resumes of a run; a user would ask for help then."""
LIMIT_S = 300.0
"""A process that has not ended by then, from its start, hangs."""
SHUTDOWN_S = 20.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What happened to a seed's run."""

    seed: int
    shape: str
    harms: list[str]
    """Of each strike, whether it was met or not."""
    strikes: list[str]
    """Each, with what was done in the end."""
    met: list[bool]
    status: str
    """The run's, in the end."""
    reason: str
    """Why it is not completed."""
    steps: int
    restarts: int
    """By the run itself."""
    resumes: int
    """By the suite; a start from the beginning, where nothing was saved, is one."""
    took_s: float
    weights: str
    """equal, different, or not compared."""
    wrong: list[str]
    """What must not be."""

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Self:
        return cls(**value)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Story:
    """What has happened so far."""

    told: dict[int, str] = field(default_factory=dict)
    """By number of the strike, what was done. A strike that is missing did not come."""
    restarts: int = 0
    trace_ends: bool = False
    """The disk refused the last trace's later records, and the run said so."""
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class References:
    """Undisturbed runs, one for each configuration whose weights are to be equal."""

    folder: Path
    model: Path
    known: dict[str, str] = field(default_factory=dict)

    def of(self, shape: Shape) -> str:
        """The hash of the final weights. Raises RuntimeError if the undisturbed run does not complete, or learn."""
        key = shape.same_weights
        if key not in self.known:
            output = self.folder / f"undisturbed, {key}".replace(", ", "-").replace(" ", "-")
            if not (output / FINAL_MODEL).exists():  # it may be kept from an earlier start of the suite
                with started(output, overrides=shape.overrides(self.model)) as run:
                    code = run.wait(LIMIT_S)
                if code != 0:
                    raise RuntimeError(f"the undisturbed run ({key}) ended with {code}:\n" + "\n".join(run.lines))
            self.known[key] = weights_of(output / FINAL_MODEL)
            if self.known[key] == weights_of(self.model):
                raise RuntimeError(f"the undisturbed run ({key}) left the weights as they were: nothing is compared")
        return self.known[key]


def weights_of(directory: Path) -> str:
    """The hash of a model's safetensors."""
    return sha256_of(directory / "model.safetensors")


def tried(plan: Plan, folder: Path, references: References) -> Trial:
    """Run a plan to its end below an empty folder, and judge it."""
    began_s = time.monotonic()
    story, pending, chance = _Story(), dict(enumerate(plan.strikes)), random.Random(f"damage {plan.seed}")
    overrides, resumes, beginnings = plan.shape.overrides(references.model), 0, 0
    output, arguments = folder / "run-0", list[str]()
    while True:
        with started(output, arguments, overrides) as run, lasting() as effects:
            for number, strike in list(pending.items()):
                try:
                    story.told[number] = carry_out(run, strike, effects, chance)
                    del pending[number]
                except NotMet:
                    break
            code = run.wait(LIMIT_S)
            effects.wait()
            _look_at_end(run, code, story)
        (folder / f"output-{resumes}.txt").write_text("\n".join(run.lines) + "\n", encoding="utf-8")
        over = code in (0, None) or (code == 2 and any(line.find("nothing to do") >= 0 for line in run.lines))
        if over or resumes == RESUMES:
            break
        resumes += 1
        arguments = _resume(output)
        if not arguments:
            beginnings += 1
            output = folder / f"run-{beginnings}"
    summary = summary_of(output) or {}
    status, reason = str(summary.get("status", "gone")), str(summary.get("error") or "")
    if code == 2 and over:
        status, reason = "completed", ""  # it was killed after it had saved everything
    took_s = round(time.monotonic() - began_s, 1)
    steps = _judge(plan, output, status, reason, story)
    weights = "not compared"
    if plan.shape.is_exact and status == "completed":
        same = weights_of(output / FINAL_MODEL) == references.of(plan.shape)
        weights = "equal" if same else "different"
    if weights == "different":
        story.wrong.append("the weights are not those of an undisturbed run")
    return Trial(
        seed=plan.seed,
        shape=str(plan.shape),
        harms=[strike.harm for strike in plan.strikes],
        strikes=[
            f"{strike}{_shown(story.told.get(number, 'the run was over before'))}"
            for number, strike in enumerate(plan.strikes)
        ],
        met=[number in story.told for number in range(len(plan.strikes))],
        status=status,
        reason="" if status == "completed" else reason,
        steps=steps,
        restarts=story.restarts,
        resumes=resumes,
        took_s=took_s,
        weights=weights,
        wrong=list(dict.fromkeys(story.wrong)),
    )


def _resume(output: Path) -> list[str]:
    """What a user resumes with; nothing where there is nothing to resume from, and the user begins again.

    A run that stopped below its floor has the loss in its newest checkpoint, and would stop again (L6).
    """
    found = list_checkpoints(output / CHECKPOINTS)
    if (summary_of(output) or {}).get("status") == "stopped":
        return ["--resume", found[1].name] if len(found) > 1 else []
    return ["--resume"] if found else []


def _shown(told: str) -> str:
    return f" ({told})" if told else ""


def _look_at_end(run: LiveRun, code: int | None, story: _Story) -> None:
    """Judge the end of one process of the command: whether it came, without a traceback, and what it left."""
    story.trace_ends = any("its trace ends there" in line for line in run.lines)
    story.restarts += sum(line.startswith("the run is restarted (") for line in run.lines)
    if code is None:
        story.wrong.append(f"hangs: not over after {LIMIT_S:.0f} s")
        return
    if any(line.startswith("Traceback (most recent call last)") for line in run.lines):
        story.wrong.append("a traceback")
    deadline_s = time.monotonic() + SHUTDOWN_S
    while (left := left_by(run)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    story.wrong += left


def _judge(plan: Plan, output: Path, status: str, reason: str, story: _Story) -> int:
    """Judge the run as it is in the end, over all its traces. Returns the steps that it closed."""
    if status != "completed" and (plan.shape.is_exact or not reason):
        story.wrong.append(f"{status} after {RESUMES} resumes: {reason or 'without a reason'}")
    trained = trained_prompts(output)
    twice = [
        prompt for prompt, times in Counter(each for step in trained.values() for each in step).items() if times > 1
    ]
    if twice:
        story.wrong.append(f"prompts {twice[:5]} were trained twice")
    replayed = replay(find_trace(output))
    if replayed.difference is not None:
        story.wrong.append(f"the trace does not replay: {replayed.difference}")
    core = replayed.core
    balance, steps = core.state.sheet.as_counts(), core.state.trainer.version
    summary: dict[str, Any] = summary_of(output) or {}
    if story.trace_ends and summary.get("balance"):
        balance, steps = summary["balance"], summary["steps"]
    if not adds_up(balance):
        story.wrong.append(f"the balance sheet does not add up: {balance}")
    if status == "completed" and summary.get("balance", balance) != balance:
        story.wrong.append(f"the summary's balance sheet {summary['balance']} is not that of the trace, {balance}")
    if status == "completed":
        if steps != STEPS:
            story.wrong.append(f"{steps} steps instead of {STEPS}")
        selected = sum(closed["selected"] for closed in summary.get("closed", ()))
        if summary.get("closed") and selected != balance["trained"]:
            story.wrong.append(f"{selected} groups are in closed steps, and {balance['trained']} were trained")
    if plan.shape.is_exact and status == "completed" and balance["trained"] != plan.shape.groups * STEPS:
        story.wrong.append(f"{balance['trained']} groups trained instead of {plan.shape.groups * STEPS}")
    return steps
