"""Words that messages share. Imports nothing."""


def counted(number: int, noun: str) -> str:
    """A number and a noun whose plural ends in s: `1 prompt`, `2,000 prompts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """The verb of so many: `is`, or `are`."""
    return "is" if number == 1 else "are"
