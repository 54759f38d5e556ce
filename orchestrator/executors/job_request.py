"""The payload and the resources of an attempt. Pure, but for the files of this program and its GPUs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache
from itertools import takewhile
from math import ceil, inf
from pathlib import Path
from typing import Any, Final, TypeVar

from dscampaign import __version__, jobs
from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.rows import StoredDocument
from dscampaign.jobs.shared import ds_config
from dscampaign.jobs.shared.code_copy import LIVE
from dscampaign.jobs.shared.job_array import EARLY_S
from dscampaign.jobs.shared.layout import AttemptPaths, CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.orchestrator.spec import batch_size
from dscampaign.orchestrator.spec.effects import ALIKE_IN_SPEED
from dscampaign.orchestrator.spec.expand import Run, SharedSections, parts_of
from dscampaign.orchestrator.spec.model import AUTO, RunConfig
from dscampaign.orchestrator.spec.slurm_section import MOST_RUNS, SlurmConfig
from dscampaign.orchestrator.spec.slurm_syntax import part_of_gres

from .local import local_gpus

_T = TypeVar("_T")

TOKEN_LENGTH, SUFFIX_LENGTH = 64, 10
"""Characters of a token in the store, and of its unique part."""

_NOT_ASKED: Final = {"reservation", "runs_per_job", "gpus_per_run"}
"""Fields of `slurm` that are no options of sbatch, or another."""

TRAINER = ("-m", "dscampaign.jobs.trainer")

IMAGE_PYTHON = "python3"
"""Runs the training in a container if the spec names none."""


def run_config(run: RunRow, sections: SharedSections | None = None) -> RunConfig:
    """Return the stored configuration of a run; it shares `sections` with configurations read before."""
    sections = sections or SharedSections()
    return (
        sections.read_stored(run.config.text) if isinstance(run.config, StoredDocument) else sections.read(run.config)
    )


def attempt_paths(row: AttemptRow) -> AttemptPaths:
    """Return the folder of an attempt."""
    return AttemptPaths(Path(row.spool_path.rpartition("/")[0]))


class Payloads:
    """Makes payloads for the agents of attempts: configurations that differ in their command alone share the rest.

    Args:
        store: URL without a password to which agents push, or None.
        workdir: Folder in which the ranks start; "" for that of their agent.
        python: Runs the training if the spec names none; "" for this program's own.
    """

    def __init__(self, paths: CampaignPaths, *, store: str | None, workdir: str = "", python: str = "") -> None:
        self._paths, self._python = paths, python
        self._same = {"campaign": paths.campaign, "data_dir": str(paths.data), "store": store, "workdir": workdir}
        self._known: dict[tuple[Any, ...], tuple[dict[str, Any], RunConfig]] = {}
        self._code_folder = cache(lambda code: str(paths.code(code)) if is_copy(code) else "")

    def of(
        self,
        run: RunRow | Run,
        config: RunConfig,
        folder: str,
        *,
        micro_batch: int | None,
        code: str = "",
        **further: Any,
    ) -> Payload:
        """Return the payload of an attempt.

        Args:
            folder: That of the attempt.
            micro_batch: None for the spec's, or for the search that it asks for.
            code: Hash of its copy of the code; any other text for none.
        """
        key = config.command is None, micro_batch, parts_of(config)
        if key not in self._known:
            self._known[key] = self._shared(config, micro_batch), config  # which keeps the ids of its parts
        return Payload(
            **self._known[key][0],
            run=run.name,
            run_dir=folder.rpartition("/")[0],
            attempt_dir=folder,
            config_hash=run.config_hash,
            command=config.command or TRAINER,
            target_step=run.target_step,
            params=run.params,
            code=self._code_folder(code),
            **further,
        )

    def _shared(self, config: RunConfig, micro_batch: int | None) -> dict[str, Any]:
        world_size, built_in, search = config.world_size(), config.command is None, ""
        if config.train.searches and micro_batch is None and config.train.global_batch:
            search, parallel = search_key(config), config.train.data_parallel(world_size)
            micro_batch = batch_size.default_micro_batch(config.train.global_batch, parallel)
        sizes = {"micro_batch": micro_batch, "accumulation": accumulation_of(config, micro_batch, world_size)}
        limit_mb = config.local.limit_mb(gpus=not trains_on_cpu(config)) if config.executor == "local" else None
        train = config.train_json(**sizes, world_size=world_size)
        return {
            **self._same,
            **sizes,
            "global_batch": config.train.global_batch,
            "seed": config.train.seed,
            "steps_decide": built_in,
            "ds_config": ds_config.render(train, **sizes, world_size=world_size, overrides=config.deepspeed),
            "train": train if built_in else None,
            "nodes": config.nodes,
            "ranks_per_node": config.ranks(),
            "gpus_per_node": gpus_per_node(config),
            "python": config.python or (IMAGE_PYTHON if config.container else self._python) or sys.executable,
            "env": env_of(config),
            "container": container_of(config),
            "mem_per_process_bytes": limit_mb * 2**20 if limit_mb else None,
            "user_patterns": tuple(rule.match for rule in config.retry.rules),
            "telemetry_s": config.telemetry_s,
            "metrics": config.metrics,
            "forward": config.forward.options(),
            "search": search,
            "setup_chooses": config.python is None and config.container is None,
            "launcher": config.launcher or "deepspeed",
            "launcher_options": config.launcher_options,
        }


def env_of(config: RunConfig) -> dict[str, str]:
    """Return the variables that a spec sets for the training."""
    return {**config.env, **(config.container.env if config.container else {})}


def container_of(config: RunConfig) -> dict[str, Any] | None:
    """Return the container of the training, as agents read it; None for none."""
    return config.container.model_dump(exclude={"env"}) if config.container else None


def search_key(config: RunConfig) -> str:
    """Return a key that is equal for runs with equal steps, such as repeats: they train with one micro-batch."""
    others: dict[str, Any] = {"retry": True, "prune": True, "forward": True, "metrics": True, "slurm": {"time"}}
    same = config.model_dump(mode="json", exclude={**others, "train": set(ALIKE_IN_SPEED)})
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


def code_of(run: RunRow, config: RunConfig) -> str:
    """Return the code of the next attempt of a run, see `AttemptRow.code`."""
    if config.command is None:
        return trainer_code()
    return LIVE if config.code == "live" else run.code


def is_copy(code: str) -> bool:
    """Return whether it is the hash of a copy."""
    return re.fullmatch(r"[0-9a-f]{16}", code) is not None


@cache
def trainer_code() -> str:
    """Return the version of the built-in trainer, with a hash of its files and of all that runs beside it."""
    digest = hashlib.sha256()
    folder = Path(jobs.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(os.fsencode(path.relative_to(folder)) + b"\0" + path.read_bytes())
    return f"dscampaign-{__version__}-{digest.hexdigest()[:12]}"[:64]


def accumulation_of(config: RunConfig, micro_batch: int | None, world_size: int) -> int | None:
    """Return the forward passes per optimizer step and rank; None for a script that manages its own batches."""
    if config.train.global_batch is None or micro_batch is None:
        return None
    return batch_size.accumulation(config.train.global_batch, micro_batch, config.train.data_parallel(world_size))


def gpus_per_node(config: RunConfig) -> int:
    """Return the GPUs that the ranks of a node use; 0 if they train on its CPU."""
    return config.slurm.gpus if config.executor == "slurm" else min(local_gpus(), config.ranks())


def trains_on_cpu(config: RunConfig) -> bool:
    """Return whether the ranks compute in host memory."""
    return gpus_per_node(config) == 0 or config.env.get("DS_ACCELERATOR") == "cpu"


def resources(
    config: RunConfig, *, runs: int = 1, mem_scale: float = 1.0, exclude: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the resources of a job, by submitit's names; jobs with equal resources share an array.

    Args:
        runs: That it runs at a time: if not all that fit on a node, it asks only for their parts of it.
        mem_scale: Factor on the memory of a node, after a host ran out of it.
    """
    if config.executor == "local":
        return {"setup": list(config.local.setup)}
    slurm, part = config.slurm, Fraction(runs, config.slurm.lanes)
    scale, mem_mb = float(part) * mem_scale, slurm.mem_mb
    passed = {name.replace("_", "-"): value for name, value in (slurm.model_extra or {}).items() if value is not False}
    options = slurm.model_dump(include=set(SlurmConfig.model_fields) - _NOT_ASKED) | {
        "gpus_per_node": part_of_gres(slurm.gpus_per_node, part) if slurm.gres is None and slurm.gpus else None,
        "gres": slurm.gres and part_of_gres(slurm.gres, part),
        "cpus_per_task": slurm.cpus_per_task and ceil(slurm.cpus_per_task * part),
        "mem": f"{ceil(mem_mb * scale)}M" if mem_mb and scale != 1 else slurm.mem,
        "exclude": ",".join(filter(None, (slurm.exclude, *exclude))) or None,
        "setup": list(slurm.setup),
        "additional_parameters": passed | ({"reservation": slurm.reservation} if slurm.reservation else {}),
    }
    return {name: value for name, value in options.items() if value is not None}


def shares_jobs(config: RunConfig) -> bool:
    """Return whether a job may run several runs, in turn or side by side."""
    slurm = config.slurm
    return config.executor == "slurm" and (slurm.runs_per_job != 1 or slurm.lanes > 1)


def runs_per_job(config: RunConfig, likely_s: Iterable[float | None] = ()) -> int:
    """Return how many runs a job runs at most: `auto` takes as many as likely fit, or else as start at once."""
    if not shares_jobs(config):
        return 1
    slurm, times_s = config.slurm, list(likely_s)
    if slurm.runs_per_job != AUTO:
        return max(slurm.runs_per_job, slurm.lanes)
    longest_s = max((seconds or inf for seconds in times_s), default=inf)
    room_s = 60 * slurm.time_min - slurm.signal_delay_s - EARLY_S
    return min(MOST_RUNS, max(1, int(room_s // longest_s)) * slurm.lanes)


def width(job: Sequence[object], config: RunConfig) -> int:
    """Return how many of its runs a job runs at a time: as many as fit on its node, or all."""
    return min(len(job), config.slurm.lanes)


def jobs_by_width(
    items: Sequence[_T], config: RunConfig, run_of: Callable[[_T], RunRow | Run], likely_s: Iterable[float | None] = ()
) -> list[tuple[int, list[list[_T]]]]:
    """Return the jobs of items of one shape, see `shared_jobs`, by their width; `likely_s` as of `runs_per_job`."""
    widths: dict[int, list[list[_T]]] = defaultdict(list)
    for job in shared_jobs(items, runs_per_job(config, likely_s), run_of):
        widths[width(job, config)].append(job)
    return [*widths.items()]


def shared_jobs(items: Sequence[_T], most: int, run_of: Callable[[_T], RunRow | Run]) -> list[list[_T]]:
    """Return the runs of each job, in its order: all runs of a repeat together if they fit.

    The drift of a machine then affects all conditions alike. Their order rotates by repeat: none is always first.
    """
    if most == 1:
        return [[item] for item in items]
    blocks: dict[tuple[str, int], list[_T]] = defaultdict(list)
    for item in items:
        blocks[run_of(item).stage, run_of(item).repeat].append(item)
    jobs: list[list[_T]] = []
    for (_, repeat), block in blocks.items():
        first = repeat % len(block)
        rotated = [*block[first:], *block[:first]]
        for start in range(0, len(rotated), most):
            part = rotated[start : start + most]
            if jobs and len(jobs[-1]) + len(part) <= most:
                jobs[-1] += part
            else:
                jobs.append(part)
    return jobs


def new_token(campaign: str, runs: Sequence[str]) -> str:
    """Return a new name for a job array, for people to read: the campaign, the common part of its runs, and chance."""
    places = zip(*(re.split("([_-])", run) for run in runs), strict=False)
    shared = takewhile(lambda words: len(set(words)) == 1, places)
    text = f"{campaign}.{''.join(words[0] for words in shared)}"[: TOKEN_LENGTH - SUFFIX_LENGTH - 1].rstrip("._-")
    return f"{text}.{uuid.uuid4().hex[:SUFFIX_LENGTH]}"


class Shapes:
    """The resources of many attempts, computed once for all whose sections are the same objects."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[str, dict[str, Any], RunConfig]] = {}

    def of(
        self, config: RunConfig, *, mem_scale: float = 1.0, exclude: tuple[str, ...] = ()
    ) -> tuple[str, dict[str, Any]]:
        """Return a key that is equal for equal resources, and the resources; arguments as of `resources`."""
        same = config.executor, id(config.slurm), id(config.local), mem_scale, exclude
        if same not in self._known:
            request = resources(config, mem_scale=mem_scale, exclude=exclude)
            key = json.dumps([request, config.slurm.runs_per_job, config.slurm.lanes], sort_keys=True)
            self._known[same] = key, request, config  # which keeps its sections' ids
        key, request, _ = self._known[same]
        return key, request
