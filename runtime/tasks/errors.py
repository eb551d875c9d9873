"""What can go wrong with data. A `DataFailure` belongs to one prompt; a `TaskError` to the whole task."""

from __future__ import annotations


class DataFailure(Exception):
    """One prompt cannot be rolled out or rated, and trying again at once is the only remedy (rule L7).

    The base of every data failure; its message names the prompt and what to change in the data.
    """


class TaskError(ValueError):
    """A task cannot be set up as configured: the data or the configuration is to blame, before any rollout."""
