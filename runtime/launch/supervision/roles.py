"""Which process of a run is which, on this machine."""

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from runtime.launch.processes import PROC, Process, process_of


class Role(StrEnum):
    """What a process of a run does."""

    RAY_CLIENT = "the driver's Ray client"
    CONTROLLER = "the controller"
    TRAINER = "a trainer rank"
    GENERATION = "a generation worker"
    REWARD = "a reward worker"
    STORE = "the group store"
    RAYLET = "the raylet"
    GCS = "the GCS"


KEEPER = "the run's keeper"
"""The process above the Ray client. It has no role of its own: it only sees to the end of all others."""
ACTORS = {
    "Controller": Role.CONTROLLER,
    "TrainerRank": Role.TRAINER,
    "GenerationWorker": Role.GENERATION,
    "RewardWorker": Role.REWARD,
    "GroupStore": Role.STORE,
    "QueueKeeper": Role.STORE,
    "TransferQueueController": Role.STORE,
    "SimpleStorageUnit": Role.STORE,
}
"""By the class of the actor."""
_ACTOR = re.compile(r"ray::(\w+)")
_NEEDED = (Role.RAY_CLIENT, Role.CONTROLLER, Role.TRAINER, Role.STORE, Role.RAYLET, Role.GCS)
"""A run without one of these stands still; its workers are the fleet's concern."""


def roles_of(tree: Sequence[int]) -> dict[Process, Role]:
    """The processes of a run, of the pids of its Ray client and of all below it, which parents precede.

    What they start themselves is left out. On a cluster that was joined, the client is alone.
    """
    found: dict[Process, Role] = {}
    raylets: set[int] = set()
    for pid in tree:
        process, role = process_of(pid), Role.RAY_CLIENT if pid == tree[0] else _role_of(pid, raylets)
        if process is not None and role is not None:
            found[process] = role
        if role is Role.RAYLET:
            raylets.add(pid)
    return found


def needed(roles: dict[Process, Role]) -> dict[Process, Role]:
    """Those without which the run stands still."""
    return {process: role for process, role in roles.items() if role in _NEEDED}


def is_controller(pid: int) -> bool:
    """False for the pid of another process, as the controller's may be here if Ray runs in another container."""
    actor = _ACTOR.match(title_of(pid))
    return actor is not None and ACTORS.get(actor[1]) is Role.CONTROLLER


def title_of(pid: int) -> str:
    """The command line of a process, which Ray sets for actors; empty for one that has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _role_of(pid: int, raylets: set[int]) -> Role | None:
    title = title_of(pid)
    name = os.path.basename(title.partition(" ")[0])
    if name in ("raylet", "gcs_server"):
        return Role.RAYLET if name == "raylet" else Role.GCS
    actor = _ACTOR.match(title)
    if actor is None or _parent_of(pid) not in raylets:
        return None
    return ACTORS.get(actor[1])


def _parent_of(pid: int) -> int:
    try:
        status = Path(PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else 0
