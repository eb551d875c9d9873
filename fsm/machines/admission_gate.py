"""AdmissionGate: whether the next batch may be dispatched."""

from enum import IntEnum
from typing import NamedTuple

from fsm.machines.table import Rule, Table


class GateState(IntEnum):
    """Open or closed."""

    OPEN = 0
    CLOSED = 1


class AdmissionGate(NamedTuple):
    """The gate's value."""

    status: GateState = GateState.OPEN
    dispatch_index: int = -1
    """Batches admitted, less one. Never falls within a run."""


class GateContext(NamedTuple):
    """What the gate's rules look at."""

    sampler_admits: int
    """1 where the sampler admits a batch now (A1)."""
    max_steps: int
    """max_num_steps where it bounds admission; else −1."""
    version: int = 0


def within_window(dispatch_index: int, version: int, window: int) -> bool:
    """A gated sampler's condition for the next batch (A1)."""
    return dispatch_index < version + window


def within_step_limit(dispatch_index: int, max_steps: int) -> bool:
    """Another batch is for a step that will be (A6); `max_steps` is -1 where nothing bounds admission."""
    return max_steps < 0 or dispatch_index + 1 < max_steps


def may_admit(gate: AdmissionGate, context: GateContext) -> bool:
    """The sampler admits, and the step limit allows (A1, A6)."""
    return bool(context.sampler_admits) and within_step_limit(gate.dispatch_index, context.max_steps)


def _must_close(gate: AdmissionGate, context: GateContext) -> bool:
    return not may_admit(gate, context)


def _within_limit(_: AdmissionGate, context: GateContext) -> bool:
    return context.version >= 0 and (context.max_steps < 0 or context.version <= context.max_steps)


def _count(gate: AdmissionGate, _: GateContext) -> AdmissionGate:
    return AdmissionGate(gate.status, gate.dispatch_index + 1)


def _restart(gate: AdmissionGate, context: GateContext) -> AdmissionGate:
    return AdmissionGate(gate.status, context.version - 1)


def gate_holds(gate: AdmissionGate, context: GateContext) -> bool:
    """No batch beyond the step limit (A6)."""
    return gate.dispatch_index >= -1 and (context.max_steps < 0 or gate.dispatch_index < context.max_steps)


_OPEN, _CLOSED = GateState

ADMISSION_GATE: Table[AdmissionGate, GateContext] = Table(
    name="AdmissionGate",
    states=GateState,
    initial=_OPEN,
    rules=(
        Rule("admit", (_OPEN,), _OPEN, ("A1", "P2"), (may_admit,), _count),
        Rule("open", (_CLOSED,), _OPEN, ("A1", "A3"), (may_admit,)),
        Rule("close", (_OPEN,), _CLOSED, ("A1", "A6"), (_must_close,)),
        Rule("restart", (_OPEN, _CLOSED), _CLOSED, ("C3",), (_within_limit,), _restart),
    ),
    refusals={
        "admit": "a batch is admitted through an open gate",
        "open": "the gate opens when the sampler admits and the step limit allows",
        "close": "the gate closes when the sampler does not admit or the step limit is reached",
        "restart": "a run goes on at a version within its step limit",
    },
    invariant=gate_holds,
)
