"""The store's rows as plain values. Standard library only, so that reading them costs no import.

Runs and attempts are not frozen: a pass makes ten thousand of each, in half the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .states import AttemptState, Cause, CauseCode, RunState, Stage, shown_state

THINNED: Final = "pruned"
"""In the evidence of an attempt whose metrics were thinned, see ``prune``. While an attempt that cannot win is being
ended, the reconciler has a note under the same name: why."""


def thinning_of(evidence: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of the thinning of an attempt, with figures from before; empty if it was not thinned."""
    thinning = evidence.get(THINNED)
    return thinning if isinstance(thinning, Mapping) else {}


def kept_every(evidences: Iterable[Mapping[str, Any]]) -> int:
    """Return N for a run that was thinned to one step in N, by the evidence of its attempts; 1 if it was not."""
    return max((int(thinning_of(evidence).get("keep_every", 1)) for evidence in evidences), default=1)


METRIC_COLUMNS = {
    "loss": "loss",
    "eval_loss": "eval_loss",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "step_time": "step_time_s",
    "tokens_per_s": "tokens_per_s",
    "mem_allocated": "mem_allocated_gb",
    "mem_reserved": "mem_reserved_gb",
    "gpu_util": "gpu_util_pct",
    "power": "power_w",
    "mfu": "mfu",
}
"""The names a metric line may use that have a column of their own, and that column. The order is the
bit order of the `nonfinite` mask: append, never reorder."""


COMPLETED: Final = "completed"  # the failure class of an attempt that completed its run
COMPLETED_EARLY: Final = "completed_early"
"""The failure class of an attempt whose script ended well before its target step; its run is completed, and marked."""

STEPS_RESTARTED: Final = "spool.restarted"
"""The event of an attempt whose script reported a step again that it had passed."""
STEPS_REPEATED: Final = "spool.repeated"  # the event of an attempt that began below a checkpoint of an earlier attempt
STEPS_BEYOND: Final = "spool.beyond"  # the event of an attempt whose script reported a step far beyond the target
SUBMITTING: Final = "submitting"  # the event with the reason for an attempt and, as `exclude`, the nodes that it avoids
ENDING: Final = "end"
"""The phase of an attempt whose ranks have ended, or are being ended; `jobs/report.py` has the others."""
SUSPENDED: Final = "suspended"  # likewise while Slurm has suspended the job
OPENED_ELSEWHERE: Final = "forward.opened"  # the event with the id of a run in another tool


class StepTimes(NamedTuple):
    """How long a run's steps take."""

    p99_s: float | None  # 99th percentile over the newest steps, in seconds; None if no step's time is known
    known: int  # steps that it is taken from
    # 99th percentile of the time between two lines, which may be many steps apart, in seconds
    between_s: float | None = None


GROWS: Final = ("search", "then")
"""Parts of a campaign's provenance that add runs; `open` in them says whether some are to come."""


@dataclass(frozen=True)
class CampaignRow:
    """One spec, as it was submitted. `limits` holds the spec's section of that name."""

    id: int
    name: str
    spec: str
    spec_hash: str
    dir: str
    executor: str
    desired: str
    provenance: dict[str, Any]
    created_s: float
    limits: dict[str, Any] = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        """Whether a search or follow-ups will add runs."""
        return self.desired == "active" and any((self.provenance.get(name) or {}).get("open") for name in GROWS)


@dataclass(slots=True)
class NewRun:
    """A run to insert: one point of the matrix, with one repeat."""

    name: str
    params: dict[str, Any]
    config: Mapping[str, Any]
    config_hash: str
    ordinal: int
    repeat: int = 0
    target_step: int | None = None
    state: RunState = RunState.PENDING
    reason: str = ""
    # the hash of the code of its next attempt: "live" for the files as they then are, "" for an installed program
    code: str = ""
    stage: Stage = Stage.FULL


@dataclass(slots=True, kw_only=True)
class RunRow(NewRun):
    """A run in the store."""

    id: int
    campaign_id: int
    desired: str
    generation: int  # the newest attempt's, 0 before the first
    retry_epoch: int  # budgets count the attempts of the same one
    not_before_s: float | None
    updated_s: float
    cause: Cause | None = None

    def has_cause(self, code: CauseCode) -> bool:
        """Return whether this is why the run is in its state."""
        return self.cause is not None and self.cause.code is code


@dataclass(slots=True)
class NewAttempt:
    """An attempt to insert, before anything is submitted."""

    run_id: int
    generation: int
    token: str
    config_hash: str
    micro_batch: int | None
    accumulation: int | None
    world_size: int
    nodes: int
    executor: str
    spool_path: str
    retry_epoch: int = 0
    array_index: int | None = None  # its place among the payloads of its array
    task: int | None = None  # of a job that runs several attempts in turn: the job's
    position: int | None = None  # its place in that job
    job_token: str | None = None  # the array of that job if another submission began it
    start_step: int | None = None  # the number of steps done when it began
    state: AttemptState = AttemptState.INTENT
    changes: str = ""  # names of changes of the configuration that make it fit into memory, separated by blanks
    memory_key: str | None = None  # leads to like attempts in the memory ledger
    predicted_gb: float | None = None  # the peak that was predicted from them
    code: str = ""  # that it ran, if known: a hash, "live", or this program's version with the hash of its trainer


@dataclass(slots=True, kw_only=True)
class AttemptRow(NewAttempt):
    """One try at a run, in the store."""

    id: int
    job_id: str | None
    submit_time_s: float | None
    created_s: float
    last_step: int | None  # the highest step that it reported
    failure_class: str | None
    evidence: Mapping[str, Any]
    heartbeat_s: float | None
    gpu_seconds: float
    spool_offset: int  # the number of bytes of its spool that the store already holds
    started_s: float | None
    ended_s: float | None
    phase: str = ""  # its last known activity, "" before it began
    phase_since_s: float | None = None
    node_list: str = ""  # in Slurm's syntax, such as `n[1-4]`

    @property
    def job_key(self) -> tuple[str, int]:
        """The job array and its task that run it."""
        return self.job_token or self.token, (self.array_index or 0) if self.task is None else self.task


@dataclass(frozen=True)
class RunLatest:
    """The newest known value of each figure of a run, from its highest attempt that reported."""

    run_id: int
    attempt_id: int
    generation: int
    step: int
    ts_s: float | None
    loss: float | None
    eval_loss: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    mem_allocated_gb: float | None
    mem_reserved_gb: float | None
    mfu: float | None


class RunStatus(NamedTuple):
    """A run on a status page: light, because there may be ten thousand."""

    run_id: int
    name: str
    state: RunState
    reason: str
    generation: int
    target_step: int | None
    step: int | None
    loss: float | None
    eval_loss: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    mem_reserved_gb: float | None
    mfu: float | None
    ts_s: float | None
    micro_batch: int | None
    accumulation: int | None
    world_size: int | None
    job_id: str | None
    failure_class: str | None
    changes: str | None
    code: str | None
    repeat: int
    started_s: float | None = None
    desired: str = "run"
    phase: str | None = None
    phase_since_s: float | None = None
    node_list: str | None = None
    stage: Stage = Stage.FULL

    @property
    def condition(self) -> str:
        """Its name without the number of its repeat."""
        return self.name.removesuffix(f"-r{self.repeat}") if self.repeat else self.name

    @property
    def early(self) -> bool:
        """Whether it completed before its target step."""
        return self.state is RunState.COMPLETED and self.failure_class == COMPLETED_EARLY

    @property
    def shown(self) -> str:
        """Its state, or that it is to end and has not ended yet."""
        return shown_state(self.state, self.desired)


@dataclass(frozen=True)
class MetricRow:
    """One step of a run as its highest attempt reported it; None means not reported, NaN means NaN."""

    attempt_id: int
    generation: int
    step: int
    ts_s: float | None
    loss: float | None
    eval_loss: float | None
    lr: float | None
    grad_norm: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    mem_allocated_gb: float | None
    mem_reserved_gb: float | None
    gpu_util_pct: float | None
    power_w: float | None
    mfu: float | None
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EventRow:
    """An event, with its reason."""

    id: int
    campaign_id: int
    run_id: int | None
    attempt_id: int | None
    ts_s: float
    kind: str
    message: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointRow:
    """A checkpoint that was complete when it was recorded."""

    run_id: int
    attempt_id: int
    generation: int
    step: int
    path: str
    size_bytes: int
    created_s: float | None = None


@dataclass(frozen=True)
class MemoryObservation:
    """The memory of an attempt, a line of the memory ledger: the worst rank's, in GB."""

    key: str  # names everything that decides memory except the micro-batch
    attempt_id: int
    micro_batch: int
    oom: bool  # whether the micro-batch did not fit
    after_init_gb: float | None = None
    peak_reserved_gb: float | None = None  # of the allocator
    usable_gb: float | None = None
    created_s: float | None = None
    per_sample_gb: float | None = None  # the cost of one more sample of the micro-batch, if it was measured
    peak_allocated_gb: float | None = None  # of tensors

    @property
    def peak_gb(self) -> float | None:
        """The peak that predictions are about: the memory of tensors, else that of the allocator."""
        return self.peak_reserved_gb if self.peak_allocated_gb is None else self.peak_allocated_gb


_MAX_KEY_PART: Final = 48  # characters
UNKNOWN: Final = "?"  # stands in an observation's key for a device or version that is not known


def memory_observation_key(memory_key: str, device: str = "", torch: str = "") -> str:
    """Return the key of an observation: an attempt's memory key, its device and its version of PyTorch."""
    return "|".join([memory_key, *(part.replace("|", "/")[:_MAX_KEY_PART] or UNKNOWN for part in (device, torch))])


@dataclass(frozen=True)
class Lease:
    """The right to reconcile, its end, and the results of the last pass (database time, epoch seconds)."""

    name: str
    holder: str
    epoch: int
    expires_s: float
    # asked_s, heard_s: when the executor was last asked about jobs, and when it last answered
    asked_s: float | None = None
    heard_s: float | None = None
    trouble: str = ""  # the obstacle of the last pass, "" for none


WARM_UP_STEPS: Final = 20  # their number unless ``train.untimed_steps`` is given


def untimed_steps(config: Mapping[str, Any]) -> int:
    """Return the number in a run's configuration; 20 if an earlier version without the field stored it."""
    steps = (config.get("train") or {}).get("untimed_steps")
    return steps if isinstance(steps, int) and steps > 0 else WARM_UP_STEPS


def warm_up_steps(untimed: int, steps: int) -> int:
    """How many steps of an attempt do not count, at least 1: of a short attempt at most its first half."""
    return min(untimed, max(1, steps // 2))
