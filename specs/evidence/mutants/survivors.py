"""Why the mutants that no property tells from the core are the same as the core, one sentence each.

A new survivor without a sentence here fails the tests; so does a sentence about a mutant that is killed.
"""

from __future__ import annotations

from collections.abc import Mapping

_GROUP = "PromptGroup {}: are_there dropped"
_START = "PromptGroup start→in_flight: {}"

_MOVES: Mapping[str, str] = {
    "admit→queued": "the data has no column to run out of: what is pulled is bounded by the source's may_pull",
    "hold_back→spare": "the data has no column to run out of: what is pulled is bounded by the source's may_pull",
    "admit_spares→queued": "a batch of spares is admitted only where the pool holds N of them (P2)",
    "replace→in_flight": "a spare is drawn only where the pool holds one (L2), and the pool's own rule asks again",
    "dispatch→in_flight": "dispatch takes at most what is queued (D1)",
    "commit→ready": "an answer is taken only from a running attempt; the count of its class refuses it otherwise (D2)",
    "filter→filtered": "an answer is taken only from a running attempt; the count of its class refuses it otherwise",
    "drop→dropped": "an answer is taken only from a running attempt; the count of its class refuses it otherwise",
    "abort→aborted": "what is aborted is counted from the running classes themselves (E1)",
    "select→selected": "what is selected is taken from the ready classes first, which refuse more than they hold (S4)",
    "evict→evicted": "what is evicted is counted from the ready classes themselves (E1)",
    "claim_failed→dropped": "an unreadable group is taken from the chunk first, which refuses one that it has not (S5)",
    "train→trained": "a step that closes trains exactly what was selected into it (L5)",
    "take_back→ready": "a resume takes back exactly what was selected (C2)",
}

_UNUSED = (
    "an attempt that starts stays in flight, so no column changes and nobody fires this rule on the balance "
    "sheet; it is there for the picture and the proof"
)
_LAST = "the last rule of its event: where the rules before it refuse, this guard is true of every value there is"
_STILL = "the event brings no spare and takes none, so the update adds 0: the mutant is the same function"
_ROOM = (
    "the sampler's answer is checked for a place left before the ledger is asked (L4); the ledger asks again, "
    "for a sampler that is evenstep's own and wrong"
)

EXPLAINED: Mapping[str, str] = {
    **{_GROUP.format(rule): why for rule, why in _MOVES.items()},
    _GROUP.format("start→in_flight"): _UNUSED,
    **{_START.format(what): _UNUSED for what in ("are_there negated", "update frozen", "taken out")},
    "StepAssembly select→full: makes_full dropped": (
        "no selection takes more than the step wants, so what does not leave room makes it full; the guard is there "
        "for a sampler that takes more, which `sampler` would notice"
    ),
    "StepAssembly charged→full: is_full dropped": (
        "a charge leaves a place or fills the last one, and the rule for a place left comes first"
    ),
    "StepAssembly claim_failed→assembling: has_selected dropped": (
        "the chunk refuses a group that it has not, before the step is asked (S5)"
    ),
    "StepAssembly finish→finishing: is_full dropped": (
        "the status full and selected + charged = N are the same by L5, and the rule leaves from full alone"
    ),
    "StepAssembly close_short→short: may_close_short dropped": (
        "the move that closes short looks at the floor first, and completes the run where the step is below it (X1)"
    ),
    "StepAssembly fall_below→below_floor: lost_too_many dropped": (
        "the move that stops the run looks at the floor first (L6), and asks for nothing where the step is above it"
    ),
    "StepAssembly next→full: is_all_charged dropped": _LAST,
    "StepAssembly take_back→full: is_all_charged dropped": _LAST,
    "StepAssembly take_back→assembling: is_untouched dropped": (
        "a step that is wholly charged is below any floor, so a resume stops the run in the same transition, from "
        "either status (L6)"
    ),
    "StepAssembly take_back→full: update frozen": (
        "a step that is wholly charged has nothing selected, so emptying it changes nothing"
    ),
    "ShortfallLedger charge→short: has_room dropped": _ROOM,
    "ShortfallLedger charge→at_floor: has_room dropped": _ROOM,
    "ShortfallLedger charge→below_floor: has_room dropped": _ROOM,
    "ShortfallLedger charge→below_floor: goes_below dropped": _LAST,
    "ShortfallLedger resume→even: taken out": (
        "a ledger exists from its first charge on, and charges are never taken back"
    ),
    "ShortfallLedger resume→below_floor: is_below dropped": _LAST,
    "SparePool stock→draining: comes_to_draining dropped": (
        "a pool that was just stocked holds a spare, so once the data is used up it drains: the rules before it refuse "
        "nothing else"
    ),
    "SparePool stock→spent: comes_to_spent dropped": "a pool that was just stocked holds a spare and is not spent",
    "SparePool stock→spent: comes_to_spent negated": (
        "the last rule of its event: one of the three before it fires for every pool that was just stocked"
    ),
    "SparePool stock→spent: update frozen": "a pool that was just stocked holds a spare and is not spent",
    "SparePool stock→spent: taken out": "a pool that was just stocked holds a spare and is not spent",
    "SparePool draw→spent: comes_to_spent dropped": (
        "the last rule of its event; nothing is drawn from an empty pool (L2, P2)"
    ),
    "SparePool data_moved→spent: comes_to_spent dropped": _LAST,
    **{f"SparePool data_moved→{status}: update frozen": _STILL for status in ("low", "stocked", "draining", "spent")},
    "AdmissionGate admit→open: may_admit dropped": (
        "the gate is moved before anything is admitted, so an open gate is one that may admit (A3)"
    ),
    "AdmissionGate open→open: may_admit dropped": "the move that opens the gate asks the same question first (A3)",
    "AdmissionGate close→closed: must_close dropped": "the move that closes the gate asks the same question first (A3)",
    "AdmissionGate restart→closed: within_limit dropped": (
        "no run is beyond its step limit (X3); the guard is for a resume under a lower one, which the snapshot's tests "
        "look at (C3)"
    ),
    "Trainer train_chunk→training: has_groups dropped": "a selection of nothing is no selection (S1)",
    "Source pull→producing: may_pull dropped": "the moves that pull take at most what the epoch has left (A1, P1)",
    "Source pull→draining_spares: may_pull dropped": (
        "the moves that pull take at most what the epoch has left (A1, P1)"
    ),
    "Source pull→draining_spares: used_up dropped": _LAST,
    "Source exhaust→exhausted: nothing_left dropped": (
        "the move that exhausts the source looks at what is in hand first (X1)"
    ),
    "Source resume→producing: pulls_nothing dropped": "a resume pulls nothing: it is asked for with 0 groups",
    "Source resume→draining_spares: pulls_nothing dropped": "a resume pulls nothing: it is asked for with 0 groups",
    "Source resume→draining_spares: used_up dropped": _LAST,
    "Source resume→draining_spares: update frozen": (
        "a source with nothing left stays at the end of its last epoch: there is no next one to go on to"
    ),
    "S2: windowed takes one version more": (
        "what is below the window is evicted before anything is selected (the order of the core's own moves), so it is "
        "not there to be taken"
    ),
    "S2: weight_fifo looks past the queue": (
        "the queue holds the batch that was admitted last, and versions never fall, so no bucket is newer than its own"
    ),
    "order: stop_below_floor before evict": (
        "windowed, which evicts, charges nothing, and the samplers that charge evict nothing (E2, L3)"
    ),
    "order: select before finish_step": "a full step wants nothing, so nothing is selected into it (S1)",
    "order: refill_pool before end_at_exhaustion": (
        "the pool is filled while data is left, and the source is exhausted once none is"
    ),
    "order: move_gate before refill_pool": (
        "the gate looks at version and dispatch index, which the pool does not change"
    ),
    "order: admit before move_gate": (
        "an admission queues its batch, so the gate is moved before the next could be; and where the gate opens, it "
        "does so in the same transition"
    ),
    "order: start_waiting before admit": "an admission looks at neither what waits nor what runs, but for their sum",
    "order: exhaust before dispatch": "the source is exhausted when nothing is queued, and dispatch needs a queue",
}
