"""All machines, for code that needs every table: production, the checker, proofs and diagrams."""

from typing import Any

from fsm.machines.admission_gate import ADMISSION_GATE
from fsm.machines.prompt_group import PROMPT_GROUP
from fsm.machines.run import RUN
from fsm.machines.shortfall_ledger import SHORTFALL_LEDGER
from fsm.machines.source import SOURCE
from fsm.machines.spare_pool import SPARE_POOL
from fsm.machines.step_assembly import STEP_ASSEMBLY
from fsm.machines.table import Table
from fsm.machines.trainer import TRAINER

TABLES: tuple[Table[Any, Any], ...] = (
    STEP_ASSEMBLY,
    SHORTFALL_LEDGER,
    SPARE_POOL,
    ADMISSION_GATE,
    TRAINER,
    SOURCE,
    RUN,
)
"""The machines that production drives: what exists once, or once a step."""

ALL_TABLES: tuple[Table[Any, Any], ...] = (PROMPT_GROUP, *TABLES)
"""These, and the life of a prompt group, which is moved as counts."""
