"""In the controller: the lines of samples whose group is not over yet, and the step and the fate that they get.

Like `StepMeter`, it sees every applied event after the fact, so nothing of it counts as the core's time:

    book.observe(transition, version)   every applied event
    book.receive(receipt)               after the GroupFinished of the receipt's group
    book.take()                         the lines that are complete

Fates are those of `fsm.effects.ClearReason`, and READY for a group that was left when the run ended.
"""

from collections import Counter
from typing import Literal

from fsm.core import AppliedEvent
from fsm.effects import ClearReason, ClearRows, TrainChunk
from fsm.events import GroupFinished
from runtime.files import Json
from runtime.groups import GroupReceipt

READY = "ready"
SAMPLE, RESUMED = "sample", "resumed"
"""Kinds of lines."""


class SampleBook:
    """Adds step and fate to samples. At most `per_step` trained groups a step are kept, and as many others."""

    def __init__(self, per_step: int | Literal["all"], incarnation: int = 0, resumed_at: int | None = None) -> None:
        """resumed_at: the steps done of a run that was resumed; its first line says so."""
        self._per_step = per_step
        self.incarnation = incarnation
        self._version = 0 if resumed_at is None else resumed_at
        self._held: dict[int, tuple[Json, ...]] = {}
        """By prompt, the samples of groups that are ready or selected."""
        self._selected: dict[int, int] = {}
        """By prompt, the step that it was selected into; of the open step alone."""
        self._over: tuple[int, ClearReason] | None = None
        """Prompt and fate of the group that finished last, if it was over at once."""
        self._kept: Counter[tuple[bool, int]] = Counter()
        """Groups by whether they were trained, and step; of the last two steps alone."""
        self._lines: list[Json] = []
        if resumed_at is not None:
            self._lines.append({"kind": RESUMED, "step": resumed_at, "incarnation": incarnation})

    def observe(self, transition: AppliedEvent, version: int) -> None:
        """One applied event, and the optimizer steps done after it."""
        event = transition.event
        finished = event.attempt.prompt if type(event) is GroupFinished else None
        if finished is not None:
            self._over = None
        for effect in transition.effects:
            if type(effect) is TrainChunk:
                self._selected.update((group.prompt, effect.step) for group in effect.groups)
            elif type(effect) is ClearRows:
                for prompt in effect.prompts:
                    if prompt == finished:
                        self._over = (prompt, effect.why)
                    self._end(prompt, self._held.pop(prompt, ()), effect.why)
        self._version = version

    def receive(self, receipt: GroupReceipt) -> None:
        """The receipt of the group whose GroupFinished was applied last."""
        if not receipt.samples:
            return
        if self._over is not None and self._over[0] == receipt.prompt:
            self._end(receipt.prompt, receipt.samples, self._over[1])
        else:
            self._held[receipt.prompt] = receipt.samples

    def take(self) -> list[Json]:
        """The lines completed since the last call, in order."""
        lines, self._lines = self._lines, []
        for place in [place for place in self._kept if place[1] < self._version - 1]:
            del self._kept[place]
        return lines

    def close(self) -> None:
        """The run is over: complete the lines of groups that are left. A resumed run may train them."""
        for prompt, samples in self._held.items():
            self._keep(samples, READY, self._selected.get(prompt, self._version))
        self._held.clear()

    def _end(self, prompt: int, samples: tuple[Json, ...], why: ClearReason) -> None:
        step = self._selected.pop(prompt, self._version)
        if samples:
            self._keep(samples, why.value, step)

    def _keep(self, samples: tuple[Json, ...], fate: str, step: int) -> None:
        place = (fate == ClearReason.TRAINED.value, step)
        self._kept[place] += 1
        if self._per_step != "all" and self._kept[place] > self._per_step:
            return
        head = {"kind": SAMPLE, "step": step, "fate": fate, "incarnation": self.incarnation}
        self._lines += [{**head, **sample} for sample in samples]
