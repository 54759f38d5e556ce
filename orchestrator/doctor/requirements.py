"""The requirements of a spec's runs on a machine. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.memory.zero_memory import Sizes, host_need_gb, needs_of
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.model import RunConfig

GB: Final = 1e9


@dataclass(frozen=True)
class Requirements:
    """The requirements of runs on like machines: for each figure the highest among them."""

    runs: tuple[str, ...]  # their names
    config: RunConfig  # of a run; the other runs share every field that matters here
    ranks: int  # processes of a node
    gpus: int  # of a node
    on_gpus: bool  # whether the training uses them
    host_gb: float = 0.0  # size of the model's states in a node's memory, on a GPU and on a node's disk
    gpu_gb: float = 0.0
    disk_gb: float = 0.0
    ops: tuple[str, ...] = ()  # DeepSpeed's operators that the training cannot do without
    files: tuple[str, ...] = ()  # absolute paths that the runs name

    @property
    def nvme_path(self) -> str | None:
        """Return the folder on each node's disk that states are offloaded to."""
        return self.config.train.nvme_path if self.config.train.offload == "nvme" else None

    @property
    def named(self) -> str:
        """Return the runs as a short text."""
        return self.runs[0] if len(self.runs) == 1 else f"{self.runs[0]} and {len(self.runs) - 1} more"


def requirements_of(runs: Iterable[Run]) -> list[Requirements]:
    """Return the requirements on each kind of machine, the most GPUs and memory first."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        config = run.config
        fields = [job_request.resources(config), config.python, config.env, run.ranks_per_node, config.train.nvme_path]
        kind = json.dumps([*fields, job_request.container_of(config)], sort_keys=True)
        groups.setdefault(kind, []).append(run)
    return sorted(map(_of_like_runs, groups.values()), key=lambda r: (-r.gpus * r.config.nodes, -r.host_gb))


def _of_like_runs(runs: Sequence[Run]) -> Requirements:
    config = runs[0].config.model_copy(update={"ranks_per_node": runs[0].ranks_per_node})
    needs = [needs_of(r.config, Sizes(r.world_size, r.ranks_per_node, r.accumulation)) for r in runs]
    states = [need.states for need in needs if need.states]
    return Requirements(
        runs=tuple(run.name for run in runs),
        config=config,
        ranks=runs[0].ranks_per_node,
        gpus=job_request.gpus_per_node(config),
        on_gpus=not job_request.trains_on_cpu(config),
        host_gb=max(host_need_gb(r.config, n, r.ranks_per_node) for r, n in zip(runs, needs, strict=True)),
        gpu_gb=max((state.gpu_gb for state in states), default=0.0),
        disk_gb=max((state.disk_gb for state in states), default=0.0),
        ops=tuple(sorted({op for run in runs for op in needed_ops(run.config)})),
        files=tuple(sorted({path for run in runs for path in _names(run.config) if Path(path).is_absolute()})),
    )


def needed_ops(config: RunConfig) -> Iterator[str]:
    """Return the DeepSpeed operators that a run's configuration asks for, as DeepSpeed's own report names them."""
    if config.train.engine != "deepspeed":
        return
    rendered = config.rendered_deepspeed()
    zero: Mapping[str, Any] = rendered["zero_optimization"]
    offloaded = {(zero.get(part) or {}).get("device", "none") for part in ("offload_optimizer", "offload_param")}
    if "nvme" in offloaded:
        yield "async_io"
    optimizer = rendered["optimizer"]
    kind = str(optimizer["type"]).lower()
    on_cpu = (zero.get("offload_optimizer") or {}).get("device", "none") != "none"
    if kind in ("adam", "adamw"):
        if not optimizer["params"].get("torch_adam"):
            yield "cpu_adam" if on_cpu else "fused_adam"
    elif kind in ("lion", "adagrad") and on_cpu:
        yield f"cpu_{kind}"
    elif kind in ("lion", "fusedlion", "lamb"):
        yield f"fused_{kind.removeprefix('fused')}"


def _names(config: RunConfig) -> Iterator[str]:
    train, data = config.train, config.train.dataset
    programs = [config.container.image] if config.container else [config.python, *(config.command or ())[:1]]
    named = [train.model, train.tokenizer, *programs, *([data.path, data.eval_path] if data else [])]
    yield from (name for name in named if isinstance(name, str))
