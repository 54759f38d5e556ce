"""When to use each strategy, from what was measured and from arithmetic that is checked against it. Pure.

The arithmetic is of model states (``memory.zero_memory``); what a run held besides them, it would hold besides those of
a larger model, too: activations and buffers grow with a model's width and depth, so the largest models here are bounds.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from dscampaign.orchestrator.formatting import short_number
from dscampaign.orchestrator.memory.zero_memory import Sizes, States, states_of
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.strategies import word_of

from .baseline import BaselineComparison, compare_speeds
from .conditions import Condition, unlike
from .ranking import faster
from .statistics import LEAST_REPEATS, Order

GPU_COUNTS: Final = (1, 2, 4, 8)
"""On one node."""

_SCALE: Final = 1_000_000_000
_STRATEGY: Final = ("strategy", "engine", "zero_stage", "offload", "nvme_path", "micro_batch")

_NEVER: Final = "never, as measured here"
_NOTHING: Final = "nothing here speaks against it"

_LIKE: Final = 1.02
"""A model that is larger by less is as large."""


@dataclass(frozen=True)
class Guidance:
    """What a condition is good for.

    Attributes:
        strategy: the spec's word for it; with several conditions of one, their names tell them apart.
        states_gb, held_gb: of a GPU, what its model's states take by arithmetic, and what PyTorch held at most.
        needs: what it takes besides GPUs.
        largest: by number of GPUs, parameters of the largest model; infinite where their memory sets no bound.
        use_when, avoid_when: in words.
    """

    condition: Condition
    strategy: str
    states_gb: float
    held_gb: float
    needs: str
    largest: Mapping[int, float]
    use_when: str
    avoid_when: str


@dataclass(frozen=True)
class _Measured:
    """A condition whose memory and speed are known."""

    one: BaselineComparison
    config: RunConfig
    strategy: str
    states: States
    held_gb: float
    largest: Mapping[int, float]
    name: str

    @property
    def all_else(self) -> str:
        """What it trains and how, but for its strategy and its micro-batch, which goes with it."""
        rest = {name: value for name, value in self.config.train.model_dump().items() if name not in _STRATEGY}
        return json.dumps([rest, self.config.deepspeed, self.config.env, self.one.condition.ranks], default=str)


def guidance(comparisons: Sequence[BaselineComparison]) -> list[Guidance]:
    """Conditions of a workload that differ in their strategy alone, the fastest first, and then others that do.

    Nothing where no two strategies were measured on GPUs so that all else was the same.
    """
    groups: dict[str, list[_Measured]] = defaultdict(list)
    for one in comparisons:
        if known := _measured(one):
            groups[known.all_else].append(known)
    compared = [_by_speed(group) for group in groups.values() if len({one.strategy for one in group}) > 1]
    return [_guidance(one, group) for group in compared for one in group]


def _measured(one: BaselineComparison) -> _Measured | None:
    condition = one.condition
    held_gb, usable_gb = condition.value("mem_peak_reserved_gb"), condition.value("mem_usable_gb")
    run = next(iter(condition.counted), None)
    if run is None or one.speed is None or held_gb is None or usable_gb is None or run.config.get("command"):
        return None
    try:
        config = RunConfig.model_validate(run.config)
    except ValidationError:  # of a version with other fields
        return None
    if (strategy := word_of(config.train)) is None or not run.parameters:
        return None
    nodes = run.slurm.get("nodes") or 1
    sizes = Sizes(run.world_size, max(1, run.world_size // nodes), run.accumulation)
    states = states_of(config, run.parameters, sizes)
    room_gb = usable_gb - max(0.0, held_gb - states.gpu_gb)
    host_gb = min(run.host_limits_gb.values(), default=math.inf)
    each = {gpus: Sizes(gpus, gpus, run.accumulation) for gpus in GPU_COUNTS}
    largest = {gpus: _largest(config, sizes, room_gb, host_gb) for gpus, sizes in each.items()}
    return _Measured(one, config, strategy, states, held_gb, largest, condition.name)


def _largest(config: RunConfig, sizes: Sizes, room_gb: float, host_gb: float) -> float:
    """Parameters whose states fit a GPU and, offloaded, the node; they grow evenly, beside buffers of a fixed size.

    None where so many GPUs make up no whole group that shares layers.
    """
    if sizes.ranks % config.train.tensor_parallel:
        return 0.0
    none, some = states_of(config, 0, sizes), states_of(config, _SCALE, sizes)
    bounds = ((none.gpu_gb, some.gpu_gb, room_gb), (none.host_gb, some.host_gb, host_gb))
    return min(
        (_SCALE * max(0.0, room - fixed) / (all_gb - fixed) for fixed, all_gb, room in bounds if all_gb > fixed),
        default=math.inf,
    )


def _speed(one: _Measured) -> float:
    return one.one.speed.value if one.one.speed else 0.0


def _by_speed(group: Sequence[_Measured]) -> list[_Measured]:
    """The fastest first; called by their strategies where these tell them apart."""
    often = Counter(one.strategy for one in group)
    named = [replace(one, name=one.strategy) if often[one.strategy] == 1 else one for one in group]
    return sorted(named, key=_speed, reverse=True)


def _faster(one: _Measured, than: _Measured) -> bool:
    """Whether it is faster, as a recommendation has it; of both with enough repeats, whether that is established."""
    left, right = one.one, than.one
    if unlike(left.condition, right.condition):
        return False
    if min(len(left.speeds), len(right.speeds)) >= LEAST_REPEATS:
        return compare_speeds(left, right) == Order.FASTER
    return faster(left, right)


def _guidance(one: _Measured, every: Sequence[_Measured]) -> Guidance:
    ahead = [other for other in every if _faster(other, one)]
    use, avoid = _beside_faster(one, ahead) if ahead else _fastest(one, every)
    needs = ", ".join(_needs(one))
    condition = one.one.condition
    return Guidance(condition, one.strategy, one.states.gpu_gb, one.held_gb, needs, one.largest, use, avoid)


def _fastest(one: _Measured, every: Sequence[_Measured]) -> tuple[str, str]:
    larger = [gpus for gpus in GPU_COUNTS if any(other.largest[gpus] > _LIKE * one.largest[gpus] for other in every)]
    limits = _limits(larger, one.largest)
    return "the model fits: nothing here is faster", f"the model is larger than {limits}" if limits else _NOTHING


def _beside_faster(one: _Measured, ahead: Sequence[_Measured]) -> tuple[str, str]:
    most = {gpus: max(other.largest[gpus] for other in ahead) for gpus in GPU_COUNTS}
    larger = [gpus for gpus in GPU_COUNTS if one.largest[gpus] > _LIKE * most[gpus]]
    best = ahead[0]
    times = f"{_speed(best) / _speed(one):.2f} × as fast"
    if not larger:
        same = next((other for other in ahead if _holds_as_much(other, one)), None)
        if same is None:
            return _NEVER, "always: others are faster and train models as large"
        ratio = _speed(same) / _speed(one)
        return _NEVER, f"always: {same.name} is {ratio:.2f} × as fast and trains models as large"
    limits = _limits(larger, most)
    return f"the model is larger than {limits}", f"the model fits with {best.name}, which is {times}"


def _holds_as_much(one: _Measured, other: _Measured) -> bool:
    return all(one.largest[gpus] * _LIKE >= other.largest[gpus] for gpus in GPU_COUNTS)


def _limits(counts: Sequence[int], parameters: Mapping[int, float]) -> str:
    """`4.9G parameters`, or `3G parameters on 1 GPU or 12G on 8` where it depends; "" for no counts."""
    if not counts:
        return ""
    first, last = counts[0], counts[-1]
    low, high = short_number(parameters[first]), short_number(parameters[last])
    if low == high:
        return f"{low} parameters"
    return f"{low} parameters on {first} GPU{'s' if first > 1 else ''} or {high} on {last}"


def _needs(one: _Measured) -> Iterator[str]:
    train = one.config.train
    yield "PyTorch alone" if train.engine != "deepspeed" else "DeepSpeed"
    if train.zero_stage == 3 or train.engine == "fsdp2":
        yield "gathers weights for every block"
    if one.states.host_gb:
        yield f"{one.states.host_gb:.1f} GB of host memory a node"
    if one.states.disk_gb:
        yield f"{one.states.disk_gb:.1f} GB of a fast local disk a node, no checkpoints"
