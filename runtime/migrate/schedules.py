"""Learning-rate schedules of other frameworks as `optimizer.schedule`."""

from runtime.migrate.rows import Converted, Fate


def lost_warmup(share: float, total: str) -> Converted:
    """A warm-up that is a share of steps, where `total`, which says how many there are, is not given."""
    note = (
        f"the warm-up is lost: it is {share:g} of all steps, and {total} is not given; set "
        "optimizer.schedule.warmup_steps"
    )
    return Converted(Fate.DECIDE, is_written=False, note=note)


def schedule(style: str, warmup_steps: int, total_steps: int, min_lr_ratio: float) -> Converted:
    """The block of a style, after a linear warm-up; `total_steps` 0 is not known."""
    constant = {"name": "constant", "warmup_steps": warmup_steps}
    if style in ("constant", "constant_with_warmup"):
        return Converted(Fate.RENAMED, constant)
    if style not in ("linear", "cosine"):
        return Converted(Fate.DECIDE, constant, f"{style}: constant, linear or cosine here; constant is written")
    if total_steps <= warmup_steps:
        note = f"{style}: it needs total_steps, which the file does not say; constant is written"
        return Converted(Fate.DECIDE, constant, note)
    decay = {"name": style, "warmup_steps": warmup_steps, "total_steps": total_steps}
    return Converted(Fate.RENAMED, {**decay, "min_lr_ratio": round(min_lr_ratio, 6)} if min_lr_ratio else decay)
