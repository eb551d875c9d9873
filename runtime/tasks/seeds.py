"""Seeds derived from names and numbers, the same on every machine and in every process."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that is a pure function of `parts`.

    Python's `hash` differs between processes and adding seeds makes (1, 2) collide with (2, 1); a digest of the
    parts, each with its type and length, does neither.
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        text = str(part)
        digest.update(f"{type(part).__name__}:{len(text)}:{text};".encode())
    return int.from_bytes(digest.digest(), "big") >> 1
