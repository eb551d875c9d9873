"""The tables, and which framework a document is of."""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from runtime.migrate.rows import KeyTable, read_table


class Framework(Enum):
    """Where a file comes from, by the name of its table."""

    NEMO_RL = "nemo-rl"
    TRL = "trl"
    VERL = "verl"


_NAMES = {Framework.NEMO_RL: "NeMo-RL", Framework.TRL: "TRL", Framework.VERL: "verl"}


@cache
def table_of(framework: Framework) -> KeyTable:
    """The framework's table."""
    return read_table(_NAMES[framework], f"{framework.value.replace('-', '_')}.txt")


def recognised(document: Mapping[str, Any]) -> Framework | None:
    """The framework whose keys a document has; None if it has those of none."""
    if "actor_rollout_ref" in document or {"algorithm", "trainer"} <= document.keys():
        return Framework.VERL
    if {"grpo", "policy"} <= document.keys():
        return Framework.NEMO_RL
    known = {row.theirs for row in table_of(Framework.TRL).rows}
    flat = [key for key, value in document.items() if key in known and not isinstance(value, Mapping)]
    return Framework.TRL if len(flat) >= max(1, len(document) // 2) else None
