"""Samplers decide which batch may start and which groups a step trains.

A sampler is one class in one file. To write one, start with docs/writing_a_sampler.md: what it needs is exported here.
`protocol` says what the core asks of a sampler and has the two base classes, `promises` is what a sampler may promise
about its answers, and `builtin` has the four samplers that come with evenstep.
"""

from fsm.samplers.builtin import chunk, count, take
from fsm.samplers.promises import NO_LIMIT, Eligible, SelectionOrder, Stamp
from fsm.samplers.protocol import Admission, BaseSampler, GatedSampler, PromptGroupSampler

__all__ = [
    "NO_LIMIT",
    "Admission",
    "BaseSampler",
    "Eligible",
    "GatedSampler",
    "PromptGroupSampler",
    "SelectionOrder",
    "Stamp",
    "chunk",
    "count",
    "take",
]
