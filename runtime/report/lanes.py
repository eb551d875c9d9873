"""Intervals side by side: each gets the first lane of its worker that is free, so that none covers another."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.report.columns import NO_WORKER, NOT_YET, Columns


@dataclass(frozen=True, slots=True)
class Lanes:
    """Attempts in lanes. Those that began before the trace are in none."""

    lane: dict[int, int]
    """By row of the attempt."""
    workers: dict[int, int]
    """Per worker how many lanes it has; `NO_WORKER` for attempts that were not placed."""


def lanes_of(attempts: Columns, now: int) -> Lanes:
    """Give every attempt a lane; one that runs ends `now`. What takes no time takes a millisecond here."""
    workers, begun, ended = attempts["worker"], attempts["begun"], attempts["ended"]
    rows = [row for row in range(len(attempts)) if begun[row] != NOT_YET]
    rows.sort(key=lambda row: (workers[row], begun[row], row))
    lane: dict[int, int] = {}
    counts: dict[int, int] = {}
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    worker = -1
    for row in rows:
        if workers[row] != worker:
            worker, free, taken = workers[row], [], []
            counts[worker] = 0
        while taken and taken[0][0] <= begun[row]:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if not free:
            heapq.heappush(free, counts[worker])
            counts[worker] += 1
        lane[row] = heapq.heappop(free)
        end = now if ended[row] == NOT_YET else ended[row]
        heapq.heappush(taken, (max(end, begun[row] + 1), lane[row]))
    return Lanes(lane, counts)


def in_lanes(attempts: Columns, lanes: Lanes, workers: Sequence[str]) -> tuple[Columns, list[dict[str, object]]]:
    """The order in which a page draws attempts: rows by lane and then by time; and per worker where its lanes are."""
    order = Columns({"row": "I"})
    begun, worker_of = attempts["begun"], attempts["worker"]
    by_lane: dict[tuple[int, int], list[int]] = {}
    for row, lane in lanes.lane.items():
        by_lane.setdefault((worker_of[row], lane), []).append(row)
    shown: list[dict[str, object]] = []
    for worker, count in sorted(lanes.workers.items()):
        starts: list[int] = []
        for lane in range(count):
            starts.append(len(order))
            for row in sorted(by_lane[worker, lane], key=lambda row: (begun[row], row)):
                order.append(row)
        name = "not placed" if worker == NO_WORKER else workers[worker]
        shown.append({"name": name, "starts": [*starts, len(order)]})
    return order, shown
