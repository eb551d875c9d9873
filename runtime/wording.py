"""Words that messages share: the core's."""

from fsm.wording import are, counted

__all__ = ["are", "counted"]
