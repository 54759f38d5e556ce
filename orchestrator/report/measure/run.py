"""The figures of each run, without judgement. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from dscampaign.db.campaigns import METRICS_SOURCE
from dscampaign.db.gpu_records import AttemptGpus
from dscampaign.db.records import (
    COMPLETED_EARLY,
    STEPS_BEYOND,
    STEPS_RESTARTED,
    SUBMITTING,
    AttemptRow,
    EventRow,
    RunRow,
    kept_every,
    thinning_of,
    untimed_steps,
)
from dscampaign.db.series import Series
from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.titles import codes_text
from dscampaign.orchestrator.failures.evidence import GROUP, READ_CONFIG, SOFTWARE
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.spec.slurm_syntax import gpus_of_node, gpus_per_rank

from .cost import Cost, FailedAttempt, cost_of, failed_attempts
from .hardware import GpuSummary, Memory, gpus_of, memory_of
from .losses import Loss, LossCurve, curve_of, loss_of
from .timing import Lines, Timing, lines_of, timing

Events = Mapping[tuple[int | None, str], Sequence[EventRow]]
"""By id of the attempt and kind, oldest first; empty without any."""

_SOFTWARE: Final = (
    "device", "driver", "cuda", "torch", "deepspeed", "patches", "transformers", "accelerate", "allocator",
)  # fmt: skip
_CPU: Final = ("cpu",)
"""Names of the devices of a run on CPUs."""

_PRINTED_WITHIN_S: Final = 2.5
"""Of lines that an earlier version has read, without their source."""


@dataclass(frozen=True)
class Quality:
    """The quality of a run's figures.

    Attributes:
        expected, received: steps that should have been made by now, and steps that lines stand for.
        gaps: number of steps missing between the first and the last line.
        repeated: steps that attempts made again after a rollback.
        non_finite: losses that were not numbers.
        skipped_steps, alloc_retries: None if not counted.
        data_wait: share of the window in which the first rank waited for data.
        kept_every: a thinned run keeps one step of this number; 1 for other runs.
    """

    expected: int | None
    received: int
    gaps: int
    repeated: int
    non_finite: int
    skipped_steps: int | None
    alloc_retries: int | None
    data_wait: float | None
    kept_every: int = 1


@dataclass(frozen=True, kw_only=True)
class MeasuredRun(RunRow):
    """A run with its figures.

    Attributes:
        generation: of the newest attempt with the present configuration; 0 before the first.
        code: code of its attempts with the present configuration, oldest first; "" if unknown.
        early: it completed before its target step.
        read_config: whether its script opened the generated DeepSpeed configuration; None if unknown.
        group: ranks of the largest group of its newest attempt; None if unknown.
        start, speed: newest reports of the trainer on model and software, and on its speed.
        hosts: nodes of the newest attempt that ended.
        machines: hardware and processor load by node, as far as reported.
        variables: of each attempt that made steps, hashes of the inherited variables that may change its speed.
        metrics_source: source of the metrics, in a sentence, if the script does not report them.
        not_taken: by kind of event, the lines that do not count, in a sentence.
        forwarded: id of the run in each tool.
        span_s: start of its first attempt with the present configuration, and end of its newest; None if unknown.
        mixed: its steps are of attempts with different micro-batches or changes.
        alike: a retry changed all completed runs of its workload alike, so they compare.
        shared_job: the job with several runs in which all its attempts ran; "" if there is no such job.
        neighbours: how many other runs ran on parts of its node at a time, on average.
    """

    early: bool
    read_config: bool | None
    group: int | None
    step: int | None
    tries: int
    changes: str
    micro_batch: int | None
    first_micro_batch: int | None
    accumulation: int | None
    world_size: int
    tokens_per_step: int | None
    timing: Timing | None
    loss: Loss
    memory: Memory
    gpus: GpuSummary
    quality: Quality
    cost: Cost
    curve: LossCurve
    start: Mapping[str, Any]
    speed: Mapping[str, Any]
    hosts: tuple[str, ...]
    machines: Mapping[str, Mapping[str, Any]]
    variables: tuple[Mapping[str, str], ...]
    failures: tuple[FailedAttempt, ...]
    metrics_source: str
    not_taken: Mapping[str, str]
    forwarded: Mapping[str, str]
    span_s: tuple[float, float] | None
    mixed: bool
    alike: bool = False
    shared_job: str
    neighbours: float

    @property
    def completed(self) -> bool:
        """Whether it reached its target."""
        return self.state == RunState.COMPLETED and not self.early

    @property
    def counts(self) -> bool:
        """Whether it may be compared: completed, and as the spec asks for it."""
        return self.completed and not self.changed

    @property
    def own_loss(self) -> bool:
        """Whether the user's own script reports the loss, in an unknown unit."""
        return bool(self.config.get("command"))

    @property
    def changed(self) -> bool:
        """Whether a retry changed its configuration, and not those of the others alike."""
        return not self.alike and (bool(self.changes) or self.micro_batch != self.first_micro_batch)

    @property
    def train(self) -> Mapping[str, Any]:
        """The trainer's configuration."""
        return self.config.get("train") or {}

    @property
    def slurm(self) -> Mapping[str, Any]:
        """The resources that its jobs request from Slurm."""
        return self.config.get("slurm") or {}

    @property
    def software(self) -> dict[str, str]:
        """The device, the versions of its software and its allocator, as far as trainer and ranks report them."""
        return {name: str(self.start[name]) for name in _SOFTWARE if self.start.get(name)}

    @property
    def device_names(self) -> tuple[str, ...]:
        """The kinds of devices that it trained on, by the trainer's name, unless telemetry knows that nodes differ."""
        return _device_names(self.gpus, self.start)

    @property
    def on_cpus(self) -> bool:
        """Whether it reports that it trained on CPUs."""
        return self.device_names == _CPU

    @property
    def on_gpus(self) -> bool:
        """Whether it trained on GPUs, by its report, else by its jobs' requests."""
        return _on_gpus(self.device_names, self.config)


def measured_run(
    run: RunRow,
    attempts: Sequence[AttemptRow],
    events: Events,
    *,
    series: Series,
    sampled: Sequence[AttemptGpus],
    until_s: float,
    skipped_steps: int | None,
    forwarded: Mapping[str, str],
    neighbours: float,
) -> MeasuredRun:
    """Return a run with its figures.

    Args:
        attempts: all of the run, oldest first.
        events: of the campaign.
        series, sampled: steps and telemetry of the attempts with the run's present configuration.
        until_s: time of the last look at running attempts.
        skipped_steps: optimizer steps left out because gradients overflowed; None if not counted.
        forwarded, neighbours: as of `MeasuredRun`.
    """
    mine = [attempt for attempt in attempts if attempt.config_hash == run.config_hash]
    newest = mine[-1] if mine else None
    start, speed, memory = (_reported(mine, events, f"script.{name}") for name in ("start", "speed", "memory"))
    anew = [event for one in mine for kind in (STEPS_RESTARTED, STEPS_BEYOND) for event in events[one.id, kind]]
    not_taken = {event.kind: event.message for event in anew}
    lines = _lines(run, mine, series, events)
    tokens = _tokens_per_step(run.config, lines, series)
    gpus, machines = gpus_of(sampled, mine), _machines(mine)
    per_rank = _devices_per_rank(_device_names(gpus, start), run.config)
    return MeasuredRun(
        **_row(run, mine),
        early=run.state == RunState.COMPLETED and newest is not None and newest.failure_class == COMPLETED_EARLY,
        read_config=next((read for one in mine[::-1] if (read := one.evidence.get(READ_CONFIG)) is not None), None),
        group=newest.evidence.get(GROUP) if newest else None,
        step=int(lines.step[-1]) if len(series) else None,
        tries=len(attempts),
        tokens_per_step=tokens,
        timing=None if STEPS_RESTARTED in not_taken else timing(series, lines),
        loss=loss_of(series, thinning_of(newest.evidence).get("final_loss") if newest else None),
        memory=memory_of(mine, series, sampled, memory, speed),
        gpus=gpus,
        quality=_quality(run, mine, series, lines, speed, skipped_steps),
        cost=cost_of(attempts, lines, run.config_hash, until_s, _searched_s(attempts, events), per_rank),
        curve=curve_of(series, lines, tokens),
        start={**_loaded(mine), **start},
        speed=speed,
        hosts=tuple(machines),
        machines={host: machine for host, machine in machines.items() if machine},
        variables=tuple(_variables(mine)),
        failures=tuple(failed_attempts(run, attempts, _excluded(attempts, events))),
        metrics_source=_metrics_source(mine, events),
        not_taken=not_taken,
        forwarded=forwarded,
        span_s=_span_s(mine),
        shared_job=_shared_job(mine),
        neighbours=neighbours,
        mixed=len({(one.micro_batch, one.changes) for one in mine if (lines.generation == one.generation).any()}) > 1,
    )


def _row(run: RunRow, mine: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return the fields of a run's row, of its attempts with the present configuration, and its batch."""
    return {
        **{field.name: getattr(run, field.name) for field in fields(run)},
        "reason": clean(run.reason),
        "generation": mine[-1].generation if mine else 0,
        "code": codes_text(attempt.code for attempt in mine),
        **_batch(run.config, mine),
    }


def _machines(mine: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return the machine of each host of the newest attempt that names its nodes; None for an unknown machine."""
    nodes = next((attempt.evidence["nodes"] for attempt in mine[::-1] if attempt.evidence.get("nodes")), ())
    return {str(node["host"]): node.get("machine") for node in nodes if node.get("host")}


def _reported(attempts: Sequence[AttemptRow], events: Events, kind: str) -> dict[str, Any]:
    """Return the fields of the newest attempt's events; the newest value counts."""
    newest = next((found for one in attempts[::-1] if (found := events[one.id, kind])), ())
    return {name: value for event in newest for name, value in event.data.items()}


def _excluded(attempts: Sequence[AttemptRow], events: Events) -> dict[int, Sequence[str]]:
    return {one.id: event.data.get("exclude", ()) for one in attempts for event in events[one.id, SUBMITTING]}


def _searched_s(attempts: Sequence[AttemptRow], events: Events) -> dict[int, float]:
    reported = {
        one.id: event.data.get("seconds") for one in attempts for event in events[one.id, "script.micro_batch_search"]
    }
    return {name: s for name, s in reported.items() if isinstance(s, int | float) and 0 <= s < math.inf}


def _metrics_source(attempts: Sequence[AttemptRow], events: Events) -> str:
    sources = (event for one in attempts[::-1] for event in reversed(events[one.id, METRICS_SOURCE]))
    return next((event.message for event in sources if event.data.get("source") != "none"), "")


def _lines_within_s(attempts: Sequence[AttemptRow], events: Events) -> float:
    """Return how late the time of a line may be, if an agent collected the metrics."""
    late_s = [0.0]
    for data in (event.data for one in attempts for event in events[one.id, METRICS_SOURCE]):
        unknown_s = _PRINTED_WITHIN_S if data.get("source", "printed") == "printed" else 0.0
        late_s.append(float(within_s) if isinstance(within_s := data.get("within_s"), int | float) else unknown_s)
    return max(late_s)


def _shared_job(attempts: Sequence[AttemptRow]) -> str:
    jobs = {attempt.job_id or "" if attempt.task is not None else "" for attempt in attempts}
    return jobs.pop() if len(jobs) == 1 else ""


def _span_s(attempts: Sequence[AttemptRow]) -> tuple[float, float] | None:
    started_s, ended_s = (attempts[0].started_s, attempts[-1].ended_s) if attempts else (None, None)
    return None if started_s is None or ended_s is None else (started_s, ended_s)


def _device_names(gpus: GpuSummary, start: Mapping[str, Any]) -> tuple[str, ...]:
    names = (str(start["device"]),) if start.get("device") else ()
    return names if names and (names == _CPU or len(gpus.names) < 2) else gpus.names


def _on_gpus(device_names: tuple[str, ...], config: Mapping[str, Any]) -> bool:
    if device_names:
        return device_names != _CPU
    if config.get("executor") == "local" or (config.get("env") or {}).get("DS_ACCELERATOR") == "cpu":
        return False
    return gpus_of_node(*_asked_gpus(config)) > 0


def _asked_gpus(config: Mapping[str, Any]) -> tuple[str, str | None]:
    slurm = config.get("slurm") or {}
    own = slurm.get("gpus_per_run")  # it shares its node
    return (str(own), None) if own else (str(slurm.get("gpus_per_node") or 0), slurm.get("gres"))


def _devices_per_rank(device_names: tuple[str, ...], config: Mapping[str, Any]) -> float:
    """Return the GPUs that an attempt holds for each of its ranks; 1 on CPUs, or if it requests none."""
    if not _on_gpus(device_names, config):
        return 1.0
    executor = config.get("executor") or "slurm"
    return gpus_per_rank(executor, *_asked_gpus(config), config.get("ranks_per_node")) or 1.0


def _lines(run: RunRow, attempts: Sequence[AttemptRow], series: Series, events: Events) -> Lines:
    first_steps = {attempt.generation: attempt.start_step or 0 for attempt in attempts}
    last_steps = {attempt.generation: attempt.last_step for attempt in attempts if attempt.last_step is not None}
    every = (run.config.get("train") or {}).get("log_every") or 1
    within_s = _lines_within_s(attempts, events)
    return lines_of(series, first_steps, every, last_steps, within_s, untimed_steps(run.config))


def _batch(config: Mapping[str, Any], attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return the batch, its division, and the changes of a retry: of the newest attempt, else as configured.

    The first micro-batch is the configured one: retries of other runs may have made it smaller before this one began.
    """
    first = (config.get("train") or {}).get("micro_batch")
    if not isinstance(first, int):
        first = next((attempt.micro_batch for attempt in attempts if attempt.micro_batch), None)
    if not attempts:
        sizes = {"micro_batch": first, "accumulation": None, "changes": "", "world_size": _ranks(config)}
    else:
        sizes = {name: getattr(attempts[-1], name) for name in ("micro_batch", "accumulation", "changes", "world_size")}
    return {"first_micro_batch": first, **sizes}


def _ranks(config: Mapping[str, Any]) -> int:
    nodes = (config.get("slurm") or {}).get("nodes") if config.get("executor") != "local" else 1
    return int((nodes or 1) * (config.get("ranks_per_node") or 1))


def _tokens_per_step(config: Mapping[str, Any], lines: Lines, series: Series) -> int | None:
    """Return tokens by the configuration of the built-in trainer, with full samples; else by a script's reports."""
    train = config.get("train") or {}
    if not config.get("command") and train.get("global_batch") and train.get("seq_len"):
        return int(train["global_batch"] * train["seq_len"])
    with np.errstate(invalid="ignore"):
        tokens = np.asarray(series.figures["tokens_per_s"]) * lines.step_s
    sizes = tokens[np.isfinite(tokens) & (tokens > 0)]
    return round(float(np.median(sizes))) if sizes.size else None


def _variables(attempts: Sequence[AttemptRow]) -> Iterator[Mapping[str, str]]:
    """Return the variables of the first node; attempts without a step, and of earlier versions, have none."""
    for attempt in attempts:
        first: Mapping[str, Any] = next(iter(attempt.evidence.get("nodes") or ()), {})
        variables = first.get("variables")
        if isinstance(variables, Mapping) and (attempt.last_step or 0) > (attempt.start_step or 0):
            yield variables


def _loaded(attempts: Sequence[AttemptRow]) -> Mapping[str, str]:
    """Return the versions that the newest attempt's first rank had loaded; attempts of earlier versions have none."""
    return next((loaded for each in attempts[::-1] if (loaded := each.evidence.get(SOFTWARE))), {})


def _quality(
    run: RunRow,
    attempts: Sequence[AttemptRow],
    series: Series,
    lines: Lines,
    speed: Mapping[str, Any],
    skipped_steps: int | None,
) -> Quality:
    received = int(lines.stands_for.sum())
    span = int(lines.step[-1]) if len(series) else 0
    gaps = max(0, span - received)
    steps_made = sum(max(0, (a.last_step or 0) - (a.start_step or 0)) for a in attempts if a.last_step is not None)
    figures = {name: value for name, value in speed.items() if isinstance(value, int | float)}
    return Quality(
        expected=run.target_step if run.state == RunState.COMPLETED else (span or None),
        received=received,
        gaps=gaps,
        repeated=max(0, steps_made - received - gaps),
        non_finite=series.non_finite.get("loss", 0),
        skipped_steps=skipped_steps,
        alloc_retries=int(figures["alloc_retries"]) if "alloc_retries" in figures else None,
        data_wait=float(figures["data_wait_share"]) if "data_wait_share" in figures else None,
        kept_every=kept_every(attempt.evidence for attempt in attempts),
    )
