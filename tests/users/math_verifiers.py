"""A verifier that calls math_verify itself, as its documentation shows."""

from math_verify import parse, verify


def half(completion: str, answer: str) -> bool:
    return verify(parse(r"$\frac{1}{2}$"), parse(completion))
