"""Groups of consecutive ranks that work on the same samples: what both kinds of them have to divide. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Any, Final

from ...jobs.shared.model_shapes import Shape, find_shape
from ..errors import FieldPath, Finding
from . import transformers_source
from .batch_size import divisors
from .model import RunConfig

HEADS: Final = ("num_attention_heads", "n_head", "num_key_value_heads")
"""Attention heads in the words of the models that are served, Transformers here or not."""


def undivided_ranks(place: FieldPath, size: int, world_size: int) -> Iterator[Finding]:
    """A finding where groups of a size are not all of the run's ranks."""
    if world_size % size:
        places = (place, ("ranks_per_node",), ("slurm", "gpus_per_node"), ("slurm", "nodes"), ("train",))
        message = f"{size} does not divide the {world_size} ranks of the run"
        yield Finding(places, message, _one_of(world_size))


def unfit_model(
    place: FieldPath,
    size: int,
    config: RunConfig,
    world_size: int,
    known: frozenset[str],
    why: str,
    divided: Mapping[str, str],
) -> Iterator[Finding]:
    """A finding where a group cannot share the run's model, as far as that is known without loading it.

    Args:
        world_size: ranks of the run, which a size that is proposed divides, too.
        known: types of models that are served.
        why: of any other, what may be in the way.
        divided: what a group's ranks divide equally, by the field of the model's configuration, with `{}` for it.
    """
    model = config.train.model
    shape = find_shape(model) if isinstance(model, str) else model
    if shape is None or not isinstance(kind := shape.get("model_type"), str):
        return
    places: tuple[FieldPath, ...] = (place, ("train", "model"))
    if kind not in known:
        yield Finding(
            places, f"is not served for model type {kind}, {why}", f"known to fit: {', '.join(sorted(known))}"
        )
        return
    sizes = _sizes(shape, config.python, divided)
    for name, count in sizes.items():
        if count % size:
            message = f"{size} does not divide the model's {divided[name].format(count)} ({name})"
            yield Finding(places, message, _one_of(gcd(world_size, *sizes.values()), ": each rank computes as many"))
            return


def across_nodes(name: str, size: int, config: RunConfig, why: str) -> list[str]:
    """A remark where a group is on several nodes, and why that is slow."""
    on_node = config.ranks()
    if config.nodes == 1 or on_node % size == 0:
        return []
    return [f"{name} {size} does not divide the {on_node} ranks of a node: {why}, here over the network between nodes"]


def _one_of(number: int, why: str = "") -> str:
    """What to write for a size that has to divide a number."""
    sizes = divisors(number)
    return (
        f"use one of {', '.join(map(str, sizes))}{why}"
        if len(sizes) > 1
        else "leave it out: only 1 divides what is shared"
    )


def _sizes(shape: Shape, python: str | None, names: Iterable[str]) -> dict[str, int]:
    """What is known of a model's sizes, by the model's own words; defaults only where Transformers is."""
    known = transformers_source.of_shape(shape, python)
    given: Mapping[str, Any] = {**known.defaults, **known.canonical(shape)} if known else shape
    return {name: size for name in names if isinstance(size := given.get(name), int) and size > 0}
