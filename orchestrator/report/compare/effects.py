"""What each axis of the matrix does to speed, memory and loss, alone and together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .baseline import BaselineComparison
from .interactions import confounded, interaction_sentence, interactions
from .sensitivity import Sensitivity, sensitivities, sensitivity_sentence


def effect_sentences(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    """Each change of an axis, then what is to be known of several together."""
    changes = sensitivities(comparisons)
    yield from map(sensitivity_sentence, changes)
    yield from joint_sentences(comparisons, changes)


def joint_sentences(comparisons: Sequence[BaselineComparison], changes: Sequence[Sensitivity]) -> Iterator[str]:
    """Which changes interact, and which axes cannot be told apart."""
    yield from (interaction_sentence(one) for one in interactions(changes) if one.established)
    yield from confounded(comparisons, changes)
