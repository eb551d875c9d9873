"""The end of a run: its outcome, what it left, and what `--resume` goes on from."""

from __future__ import annotations

from pathlib import Path

from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints, looks_whole, step_of
from runtime.explain.finding import Finding, RunVerdict
from runtime.explain.situation import Situation

TROUBLE = frozenset({RunVerdict.DEADLOCKED, RunVerdict.LIVELOCKED, RunVerdict.STALLED, RunVerdict.STARVED})
"""Verdicts that a run which is over is explained by, beside its outcome."""


def checkpoints_of(situation: Situation) -> Path:
    """The folder of the run's checkpoints: beside the trace, or where the process of the trace wrote its last one."""
    beside = situation.trace.path.absolute().parent / CHECKPOINTS
    written = situation.vitals.checkpoint
    return beside if beside.is_dir() or written is None else Path(written).parent


def newest_checkpoint(situation: Situation) -> Path | None:
    """The newest with all its files; None where there is no such checkpoint. Contents are not read: `--resume` does."""
    return next((path for path in list_checkpoints(checkpoints_of(situation)) if looks_whole(path)), None)


def resumes(situation: Situation) -> str:
    """What `--resume` goes on from, in one sentence, as the directory is at this moment."""
    newest = newest_checkpoint(situation)
    if newest is None:
        return f"there is no whole checkpoint in {checkpoints_of(situation)}, so --resume has nothing to go on from"
    return f"--resume goes on from {newest}, after {step_of(newest)} steps"


def left(situation: Situation) -> str | None:
    """The model that the run left, in one sentence; None where none was saved."""
    if situation.ended is None or situation.ended.model is None:
        return None
    model = Path(situation.ended.model)
    return f"the model is in {model}" if model.is_dir() else f"the model was saved in {model}, which is gone"


def over(situation: Situation, completed_by: str, trouble: Finding | None) -> Finding:
    """The finding of a run that is over: the outcome and its error first, then what was wrong before.

    Args:
        situation: Of a run with an outcome.
        completed_by: The limit that a completed run came to.
        trouble: What is found of the state before the end.
    """
    ended = situation.ended
    assert ended is not None, "the run is over"
    verdict = RunVerdict(ended.status)
    if verdict is RunVerdict.COMPLETED:
        return Finding(verdict, (f"{ended.said} and waits for nothing: {completed_by}",), "nothing")
    advice = "what the error says" if ended.error is not None else "nothing, if this was wanted"
    if trouble is None or trouble.verdict not in TROUBLE:
        return Finding(verdict, (ended.said,), f"{advice}; {resumes(situation)}")
    if verdict is not RunVerdict.FAILED:
        advice = trouble.advice
    chain = (ended.said, f"before that it was {trouble.verdict.value}: {trouble.chain[0]}", *trouble.chain[1:])
    return Finding(verdict, chain, f"{advice}; {resumes(situation)}", trouble.proof, trouble.verdict)
