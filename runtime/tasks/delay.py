"""Verdicts that take their time, for benchmarks: a slow tool with a long tail, without the tool."""

from __future__ import annotations

import math
import random

from runtime.tasks.config import DelayConfig
from runtime.tasks.seeds import derive_seed


def delay_s(delay: DelayConfig, seed: int, index: int, sibling: int) -> float:
    """How long the verdict on this rollout is held back, in seconds: the same in every run with this seed."""
    deviate = random.Random(derive_seed(seed, "delay", index, sibling)).gauss()
    return min(delay.max_s, max(delay.min_s, delay.median_s * math.exp(delay.sigma * deviate)))
