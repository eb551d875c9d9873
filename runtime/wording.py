"""Words that messages share: the core's."""

from fsm.wording import counted

__all__ = ["counted"]
