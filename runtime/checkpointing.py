"""The block `checkpointing`: when checkpoints are written, which of them stay, and when a run ends to save one."""

from pydantic import Field

from fsm.config.plain import LONGEST_S
from fsm.config.strict import Strict


class CheckpointingConfig(Strict):
    """When checkpoints are written, and which of them stay."""

    enabled: bool = Field(
        default=True,
        description="Write checkpoints: every `every_steps` steps, every `every_minutes` minutes, and one at the end "
        "of every run.",
    )
    every_steps: int = Field(default=100, ge=0, description="Steps between two checkpoints; 0: none is due by steps.")
    every_minutes: float | None = Field(
        default=30.0,
        gt=0,
        description="Minutes between two checkpoints: one is also due at the end of the first step after so long "
        "without one. null: none is due by time.",
    )
    keep: int = Field(default=2, ge=1, description="Newest checkpoints that are kept.")
    keep_every_steps: int | None = Field(
        default=None,
        ge=1,
        description="The first checkpoint at or after each multiple of so many steps is kept for ever, in addition "
        "to `keep`. null: none is.",
    )
    max_wall_s: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_S,
        description="Seconds from the start of the command within which the run ends by itself, saved and ready to be "
        "resumed: the time limit of a job. NeMo-RL's checkpoint_must_save_by. null: no limit.",
    )
