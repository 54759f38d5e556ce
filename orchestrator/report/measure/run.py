"""The figures of each run, without judgement. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dscampaign.db.gpu_records import AttemptGpus
from dscampaign.db.records import (
    COMPLETED_EARLY,
    STEPS_RESTARTED,
    AttemptRow,
    RunRow,
    kept_every,
    thinning_of,
    untimed_steps,
)
from dscampaign.db.series import Series
from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.campaign.titles import codes_text
from dscampaign.orchestrator.failures.evidence import GROUP, READ_CONFIG, SOFTWARE
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.spec.slurm_syntax import gpus_of_node, gpus_per_rank

from .cost import Cost, cost_of
from .failures import FailedAttempt, failed_attempts
from .hardware import GpuSummary, Memory, gpus_of, memory_of
from .losses import Loss, LossCurve, curve_of, loss_of
from .timing import Lines, Timing, lines_of, timing

_SOFTWARE: Final = (
    "device",
    "driver",
    "cuda",
    "torch",
    "deepspeed",
    "patches",
    "transformers",
    "accelerate",
    "allocator",
)
_CPU: Final = ("cpu",)
"""Names of the devices of a run on CPUs."""


@dataclass(frozen=True)
class RunData:
    """The store's data of a run.

    Attributes:
        attempts: oldest first; ``mine`` of them have the run's present configuration, as does the telemetry.
        start, speed, memory: newest reports of the trainer: at its start, of its speed, of the GPU's memory.
        excluded: excluded nodes, by attempt id.
        skipped_steps: optimizer steps left out because gradients overflowed; None if not counted.
        metrics_source: source of the metrics, in a sentence, if the script does not report them.
        not_taken: by kind of event, the lines that do not count, in a sentence.
        lines_within_s: delay of a line's time after it was written, at most.
        forwarded: id of the run in each tool.
        until_s: time of the last look at running attempts.
        searched_s: seconds of the search for the micro-batch, by attempt id.
        neighbours: as of `MeasuredRun`.
    """

    run: RunRow
    attempts: Sequence[AttemptRow]
    series: Series
    gpus: Sequence[AttemptGpus]
    start: Mapping[str, Any]
    speed: Mapping[str, Any]
    memory: Mapping[str, Any]
    excluded: Mapping[int | None, Sequence[str]]
    skipped_steps: int | None
    metrics_source: str
    not_taken: Mapping[str, str]
    lines_within_s: float
    forwarded: Mapping[str, str]
    until_s: float
    searched_s: Mapping[int | None, float]
    neighbours: float = 0.0

    @property
    def mine(self) -> list[AttemptRow]:
        """Attempts with the run's present configuration."""
        return [attempt for attempt in self.attempts if attempt.config_hash == self.run.config_hash]


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


@dataclass(frozen=True)
class MeasuredRun:
    """The figures of a run.

    Attributes:
        start, speed: newest reports of the trainer on model and software, and on its speed.
        early: it completed before its target step.
        read_config: whether its script opened the generated DeepSpeed configuration; None if unknown.
        group: ranks of the largest group of its newest attempt; None if unknown.
        not_taken: by kind of event, the lines that do not count, in a sentence.
        code: code of its attempts with the present configuration, oldest first; "" if unknown.
        hosts: nodes of the newest attempt that ended.
        machines: hardware and processor load by node, as far as reported.
        variables: of each attempt that made steps, hashes of the inherited variables that may change its speed.
        span_s: start of its first attempt with the present configuration, and end of its newest; None if unknown.
        generation: of the newest attempt with the present configuration; 0 before the first.
        mixed: its steps are of attempts with different micro-batches or changes.
        alike: a retry changed all completed runs of its workload alike, so they compare.
        shared_job: the job with several runs in which all its attempts ran; "" if there is no such job.
        neighbours: how many other runs ran on parts of its node at a time, on average.
    """

    name: str
    params: Mapping[str, Any]
    repeat: int
    stage: Stage
    state: RunState
    early: bool
    read_config: bool | None
    group: int | None
    reason: str
    step: int | None
    target_step: int | None
    tries: int
    changes: str
    code: str
    micro_batch: int | None
    first_micro_batch: int | None
    accumulation: int | None
    world_size: int
    tokens_per_step: int | None
    config: Mapping[str, Any]
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
    generation: int
    mixed: bool
    alike: bool = False
    shared_job: str = ""
    neighbours: float = 0.0

    @property
    def completed(self) -> bool:
        """Whether it reached its target."""
        return self.state == RunState.COMPLETED and not self.early

    @property
    def silent(self) -> bool:
        """Whether it ended without reporting a step."""
        return self.completed and self.step is None

    @property
    def own_loss(self) -> bool:
        """Whether the user's own script reports the loss, in an unknown unit."""
        return bool(self.config.get("command"))

    @property
    def changed(self) -> bool:
        """Whether a retry changed its configuration, and not those of the others alike."""
        return not self.alike and (bool(self.changes) or self.micro_batch != self.first_micro_batch)

    @property
    def heeds_config(self) -> bool:
        """Whether it is known to have read its DeepSpeed configuration: a user's script may have another."""
        return not self.config.get("command") or bool(self.read_config)

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
        """The kinds of devices that it trained on, by the trainer's name, else by the telemetry's.

        The two may name a GPU differently, so the trainer's name counts for runs with and without telemetry; only
        telemetry knows that nodes of a job differ.
        """
        return _device_names(self.gpus, self.start)

    @property
    def on_cpus(self) -> bool:
        """Whether it reports that it trained on CPUs."""
        return self.device_names == _CPU

    @property
    def on_gpus(self) -> bool:
        """Whether it trained on GPUs, by its report, else by its jobs' requests."""
        return _on_gpus(self.device_names, self.config)

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks; None if the tokens or samples of a step are unknown."""
        samples = self.train.get("global_batch")
        tokens = self.timing.tokens_per_s if self.timing else None
        return tokens / self.tokens_per_step * samples if tokens and self.tokens_per_step and samples else None


def measured_run(data: RunData) -> MeasuredRun:
    """Everything that is known of a run."""
    run, mine = data.run, data.mine
    newest = mine[-1] if mine else None
    lines = _lines(data)
    generations = set(lines.generation.tolist())
    tokens = _tokens_per_step(run.config, lines, data.series)
    nodes = next((attempt.evidence["nodes"] for attempt in mine[::-1] if attempt.evidence.get("nodes")), ())
    gpus = gpus_of(data.gpus, mine)
    per_rank = _devices_per_rank(_device_names(gpus, data.start), run.config)
    return MeasuredRun(
        name=run.name,
        params=run.params,
        repeat=run.repeat,
        stage=run.stage,
        state=run.state,
        early=run.state == RunState.COMPLETED and newest is not None and newest.failure_class == COMPLETED_EARLY,
        reason=clean(run.reason),
        read_config=next((read for each in mine[::-1] if (read := each.evidence.get(READ_CONFIG)) is not None), None),
        group=newest.evidence.get(GROUP) if newest else None,
        step=int(lines.step[-1]) if len(data.series) else None,
        target_step=run.target_step,
        tries=len(data.attempts),
        code=codes_text(attempt.code for attempt in mine),
        tokens_per_step=tokens,
        config=run.config,
        timing=None if STEPS_RESTARTED in data.not_taken else timing(data.series, lines),
        loss=loss_of(data.series, thinning_of(newest.evidence).get("final_loss") if newest else None),
        memory=memory_of(mine, data.series, data.gpus, data.memory, data.speed),
        gpus=gpus,
        quality=_quality(data, lines),
        cost=cost_of(data.attempts, lines, run.config_hash, data.until_s, data.searched_s, per_rank),
        curve=curve_of(data.series, lines, tokens),
        start={**_loaded(mine), **data.start},
        speed=data.speed,
        hosts=tuple(dict.fromkeys(str(node["host"]) for node in nodes if node.get("host"))),
        machines={str(node["host"]): node["machine"] for node in nodes if node.get("host") and node.get("machine")},
        variables=tuple(_variables(mine)),
        failures=tuple(failed_attempts(run, data.attempts, data.excluded)),
        metrics_source=data.metrics_source,
        not_taken=data.not_taken,
        forwarded=data.forwarded,
        span_s=_span_s(mine),
        generation=newest.generation if newest else 0,
        shared_job=_shared_job(mine),
        neighbours=data.neighbours,
        mixed=len({(one.micro_batch, one.changes) for one in mine if one.generation in generations}) > 1,
        **_batch(run.config, mine),
    )


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


def _lines(data: RunData) -> Lines:
    first_steps = {attempt.generation: attempt.start_step or 0 for attempt in data.mine}
    last_steps = {attempt.generation: attempt.last_step for attempt in data.mine if attempt.last_step is not None}
    every = (data.run.config.get("train") or {}).get("log_every") or 1
    untimed = untimed_steps(data.run.config)
    return lines_of(data.series, first_steps, every, last_steps, data.lines_within_s, untimed)


def _batch(config: Mapping[str, Any], attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return the batch, its division, and the changes of a retry: of the newest attempt, else as configured.

    The first micro-batch is the configured one, with `auto` the first that was found: retries of other runs may have
    made this one smaller before its first attempt.
    """
    micro_batch = (config.get("train") or {}).get("micro_batch")
    first = (
        micro_batch
        if isinstance(micro_batch, int)
        else next((attempt.micro_batch for attempt in attempts if attempt.micro_batch), None)
    )
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


def _quality(data: RunData, lines: Lines) -> Quality:
    received = int(lines.stands_for.sum())
    span = int(lines.step[-1]) if len(data.series) else 0
    gaps = max(0, span - received)
    steps_made = sum(max(0, (a.last_step or 0) - (a.start_step or 0)) for a in data.mine if a.last_step is not None)
    figures = {name: value for name, value in data.speed.items() if isinstance(value, int | float)}
    return Quality(
        expected=data.run.target_step if data.run.state == RunState.COMPLETED else (span or None),
        received=received,
        gaps=gaps,
        repeated=max(0, steps_made - received - gaps),
        non_finite=data.series.non_finite.get("loss", 0),
        skipped_steps=data.skipped_steps,
        alloc_retries=int(figures["alloc_retries"]) if "alloc_retries" in figures else None,
        data_wait=float(figures["data_wait_share"]) if "data_wait_share" in figures else None,
        kept_every=kept_every(attempt.evidence for attempt in data.mine),
    )
