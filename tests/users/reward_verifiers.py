"""Verifiers in every form that a verifier may have, and some that none may."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def from_row(completion: str, row: Any) -> float:
    return float(completion == row["columns_say"]) * row["completion_tokens"]


def annotated(completion: str, about: dict[str, Any]) -> float:
    return float(about["finish_reason"] == "stop")


def mapped(completion: str, about: Mapping[str, Any]) -> dict[str, float]:
    return {"turns": len(about["turns"]), "prompt": -float(len(about["prompt"]))}


def answered(completion: str, answer: str) -> float:
    return 1.0 if completion == answer else -1.0


async def waits(completion: str, row: Any) -> float:
    return float(row["answer"] == completion) * 0.5


def minus_length(completion: str, answer: str) -> int:
    return -len(completion)


def parts(completion: str, answer: str) -> dict[str, Any]:
    return {"format": np.float32(0.5), "right": completion == answer}


def with_reward(completion: str, answer: str) -> dict[str, Any]:
    return {"length": len(completion), "reward": -2.5, "correct": completion == answer}


def many(completion: str, answer: str) -> dict[str, float]:
    """A name a completion, which would be a metric a completion."""
    return {f"part of {completion}": 1.0}


def a_part_each(completion: str, answer: str) -> dict[str, float]:
    return dict.fromkeys(completion.split(), 1.0)


def named(completion: str, answer: str) -> dict[str, float]:
    return {completion: 1.0}


def says_correct(completion: str, answer: str) -> dict[str, Any]:
    said = json.loads(completion)
    return {"reward": 0.0, "correct": np.bool_(True) if said == "np" else said}


def numbered(completion: str, answer: str) -> dict[int, float]:
    return {1: 1.0}


def nan_in_parts(completion: str, answer: str) -> dict[str, float]:
    return {"format": 1.0, "right": float("nan")}


def of_trl(completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0 for _ in completions]


def of_trl_with_prompts(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0 for _ in completions]


def of_verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return 1.0


def huge(completion: str, answer: str) -> float:
    return 1e300


partial = functools.partial(answered)
