"""The figures of each run, without judgement. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
from dscampaign.orchestrator.failures.evidence import GROUP, SOFTWARE
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.spec.slurm_syntax import gpus_of_node, gpus_per_rank

from .cost import Cost, FailedAttempt, cost_of, failed_attempts
from .hardware import GpuSummary, Memory, gpus_of, memory_of, number
from .losses import Loss, LossCurve, curve_of, loss_of
from .timing import Lines, Timing, lines_of, timing

Events = Mapping[tuple[int | None, str], Sequence[EventRow]]
"""By id of the attempt and kind, oldest first; empty without any."""

_SOFTWARE: Final = (
    "device", "driver", "cuda", "torch", "deepspeed", "patches", "transformers", "accelerate", "allocator",
)  # fmt: skip


@dataclass(frozen=True)
class Quality:
    """The quality of a run's figures.

    Attributes:
        expected, received: steps that should have been made by now, and steps that lines stand for.
        non_finite: losses that were not numbers.
        data_wait: share of the window in which the first rank waited for data.
        kept_every: a thinned run keeps one step of this number; 1 for other runs.
    """

    expected: int | None
    received: int
    non_finite: int
    skipped_steps: int | None
    alloc_retries: int | None
    data_wait: float | None
    kept_every: int = 1


@dataclass(kw_only=True)
class MeasuredRun(RunRow):
    """A run with its figures.

    Attributes:
        generation, code: of its attempts with the present configuration: of the newest, and oldest first.
        early: it completed before its target step.
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
        shared_job: the job with several runs in which all its attempts ran; "" without a shared job.
        neighbours: how many other runs ran on parts of its node at a time, on average.
    """

    early: bool
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
        """Whether a retry changed its configuration, and not the others' alike."""
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
        names = (str(self.start["device"]),) if self.start.get("device") else ()
        return names if names and (names == ("cpu",) or len(self.gpus.names) < 2) else self.gpus.names

    @property
    def on_gpus(self) -> bool:
        """Whether it trained on GPUs, by its report, else by its jobs' requests."""
        if self.device_names:
            return self.device_names != ("cpu",)
        if self.config.get("executor") == "local" or (self.config.get("env") or {}).get("DS_ACCELERATOR") == "cpu":
            return False
        return gpus_of_node(*self._asked_gpus) > 0

    @property
    def devices_per_rank(self) -> float:
        """The GPUs that an attempt holds for each of its ranks; 1 on CPUs, or if it requests none."""
        executor, ranks = self.config.get("executor") or "slurm", self.config.get("ranks_per_node")
        return gpus_per_rank(executor, *self._asked_gpus, ranks) or 1.0 if self.on_gpus else 1.0

    @property
    def _asked_gpus(self) -> tuple[str, str | None]:
        own = self.slurm.get("gpus_per_run")  # it shares its node
        return (str(own), None) if own else (str(self.slurm.get("gpus_per_node") or 0), self.slurm.get("gres"))


def measured_run(
    run: RunRow, attempts: Sequence[AttemptRow], events: Events, series: Series, sampled: Sequence[AttemptGpus],
    *, until_s: float, skipped_steps: int | None, forwarded: Mapping[str, str], neighbours: float,
) -> MeasuredRun:  # fmt: skip
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
    start, speed, memory = (_reported(mine, events, f"script.{name}") for name in ("start", "speed", "memory"))
    anew = [event for one in mine for kind in (STEPS_RESTARTED, STEPS_BEYOND) for event in events[one.id, kind]]
    not_taken = {event.kind: event.message for event in anew}
    lines = _lines(run, mine, series, events)
    excluded = {one.id: event.data.get("exclude", ()) for one in attempts for event in events[one.id, SUBMITTING]}
    loaded: Mapping[str, str] = next((found for each in mine[::-1] if (found := each.evidence.get(SOFTWARE))), {})
    span = int(lines.step[-1]) if len(series) else 0
    received, usual = int(lines.stands_for.sum()), int(lines.stands_for.max(initial=1))
    target = run.target_step if run.state == RunState.COMPLETED else None
    expected = target if target and target - received >= usual else span or None  # lines need not end with it
    alloc_retries = number(speed.get("alloc_retries"))
    measured = MeasuredRun(
        **{field.name: getattr(run, field.name) for field in fields(run)} | _of_attempts(run, mine, events),
        step=span or None,
        tries=len(attempts),
        tokens_per_step=_tokens_per_step(run.config, lines, series),
        timing=None if STEPS_RESTARTED in not_taken else timing(series, lines),
        loss=loss_of(series, thinning_of(mine[-1].evidence).get("final_loss") if mine else None),
        memory=memory_of(mine, series, sampled, memory, speed),
        gpus=gpus_of(sampled, mine),
        quality=Quality(
            expected=expected,
            received=received,
            non_finite=series.non_finite.get("loss", 0),
            skipped_steps=skipped_steps,
            alloc_retries=None if alloc_retries is None else int(alloc_retries),
            data_wait=number(speed.get("data_wait_share")),
            kept_every=kept_every(attempt.evidence for attempt in mine),
        ),
        cost=Cost({}),
        curve=curve_of(series, lines),
        start={**loaded, **start},
        speed=speed,
        failures=tuple(failed_attempts(run, attempts, excluded)),
        not_taken=not_taken,
        forwarded=forwarded,
        neighbours=neighbours,
        mixed=len({(one.micro_batch, one.changes) for one in mine if (lines.generation == one.generation).any()}) > 1,
    )
    searches = ((one.id, event) for one in attempts for event in events[one.id, "script.micro_batch_search"])
    searched_s = {attempt_id: number(event.data.get("seconds")) or 0.0 for attempt_id, event in searches}
    cost = cost_of(attempts, lines, run.config_hash, until_s, searched_s, measured.devices_per_rank)
    return replace(measured, cost=cost)


def _of_attempts(run: RunRow, mine: Sequence[AttemptRow], events: Events) -> dict[str, Any]:
    """Return the facts of the attempts with the present configuration; the batch is configured, if there are none.

    The first micro-batch is as configured: retries of other runs may have made it smaller before this run began.
    """
    newest, config = mine[-1] if mine else None, run.config
    first = (config.get("train") or {}).get("micro_batch")
    if not isinstance(first, int):
        first = next((attempt.micro_batch for attempt in mine if attempt.micro_batch), None)
    nodes = (config.get("slurm") or {}).get("nodes") if config.get("executor") != "local" else 1
    sizes = {"micro_batch": first, "accumulation": None, "changes": ""}
    sizes |= {"world_size": int((nodes or 1) * (config.get("ranks_per_node") or 1))}
    hosts = next((attempt.evidence["nodes"] for attempt in mine[::-1] if attempt.evidence.get("nodes")), ())
    machines = {str(node["host"]): node.get("machine") for node in hosts if node.get("host")}
    jobs = {attempt.job_id or "" if attempt.task is not None else "" for attempt in mine}
    sources = (event for one in mine[::-1] for event in reversed(events[one.id, METRICS_SOURCE]))
    started_s = [attempt.started_s for attempt in mine if attempt.started_s is not None]
    return {
        **{name: getattr(newest, name, otherwise) for name, otherwise in sizes.items()},
        "first_micro_batch": first,
        "reason": clean(run.reason),
        "generation": newest.generation if newest else 0,
        "code": codes_text(attempt.code for attempt in mine),
        "early": run.state == RunState.COMPLETED and newest is not None and newest.failure_class == COMPLETED_EARLY,
        "group": newest.evidence.get(GROUP) if newest else None,
        "hosts": tuple(machines),
        "machines": {host: machine for host, machine in machines.items() if machine},
        "variables": tuple(_variables(mine)),
        "metrics_source": next((event.message for event in sources if event.data.get("source") != "none"), ""),
        "span_s": (started_s[0], newest.ended_s) if started_s and newest and newest.ended_s is not None else None,
        "shared_job": jobs.pop() if len(jobs) == 1 else "",
    }


def _reported(attempts: Sequence[AttemptRow], events: Events, kind: str) -> dict[str, Any]:
    """Return the fields of the newest attempt's events; the newest value counts."""
    newest = next((found for one in attempts[::-1] if (found := events[one.id, kind])), ())
    return {name: value for event in newest for name, value in event.data.items()}


def _lines(run: RunRow, attempts: Sequence[AttemptRow], series: Series, events: Events) -> Lines:
    first_steps = {attempt.generation: attempt.start_step or 0 for attempt in attempts}
    last_steps = {attempt.generation: attempt.last_step for attempt in attempts if attempt.last_step is not None}
    every = (run.config.get("train") or {}).get("log_every") or 1
    late_s = [0.0]  # of the times of lines, if an agent collected the metrics
    for data in (event.data for one in attempts for event in events[one.id, METRICS_SOURCE]):
        unknown_s = 2.5 if data.get("source", "printed") == "printed" else 0.0  # as an earlier version has read it
        late_s.append(unknown_s if (within_s := number(data.get("within_s"))) is None else within_s)
    return lines_of(series, first_steps, every, last_steps, max(late_s), untimed_steps(run.config))


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
