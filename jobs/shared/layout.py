"""Paths of a campaign on the shared folder, as docs/architecture.md lists them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108
"""The node's own memory, for files that are useless after the ranks."""


class Beside(StrEnum):
    """Names beside the campaigns in their `dir`: no campaign may have these names."""

    STORE = "campaign.db"
    SETTINGS = "campaign.toml"
    DATA = "data"
    CODE = "code"


MARKER: Final = "campaign.json"
BY_HAND: Final = "by-hand"  # the folder in a campaign's for the runs that scripts of `campaign render` make
RECONCILER: Final = ".reconciler"
"""The folder in `dir` of the reconciler that runs detached: no campaign can have this name."""

FORWARD_ROOT_LEVELS = 3  # from an attempt's folder up to the campaign's `dir`: {campaign}/runs/{run}/g0001


class _Below:
    def __init__(self, name: str) -> None:
        self._name = name

    def __set_name__(self, kind: object, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, owner: AttemptPaths | RunPaths | CampaignPaths, kind: object) -> Path:
        path = vars(owner)[self._attribute] = owner.dir / self._name  # from now on without a call of this
        return path


class _EachBelow:
    """A file of each node, rank, tool or the like."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __get__(self, owner: AttemptPaths | RunPaths | CampaignPaths, kind: object) -> Callable[[int | str], Path]:
        return lambda key: owner.dir / self._form.format(key)


@dataclass(frozen=True)
class AttemptPaths:
    """The files of an attempt. Written by its agents and ranks, read by the reconciler."""

    dir: Path
    claim = _Below("claim")  # created exclusively by the job that may run the attempt; holds its job id
    node_claim = _EachBelow("claim-{}")  # likewise, by the agent of each node but the first
    restarted = _Below("restarted.json")
    """Left by a further start of the job that holds the claim: Slurm ended the first start."""
    started = _Below("started.json")
    """Node 0's announcement: where the ranks meet, the checkpoint to resume from, host and time."""
    metrics = _Below("metrics.jsonl")  # the spool: one JSON line per reported step
    gpu_spool = _EachBelow("gpus-{}.jsonl")  # samples of a node's GPUs: one JSON line a sample
    forward_payload = _Below("forward.json")
    """The attempt as it really runs, for the processes that forward its metrics."""
    forward_spool = _Below("forward.jsonl")  # events of these processes: one JSON line an event
    forward_log = _EachBelow("logs/forward-{}.log")  # the output of a tool's process
    ds_config = _Below("ds_config.json")  # the rendered DeepSpeed configuration of this attempt
    train_config = _Below("train.json")  # the built-in trainer's configuration of this attempt
    stop = _Below("stop")  # exists when the ranks are asked to checkpoint and leave
    resize = _Below("resize.json")
    """The reconciler's order, while the attempt waited in the queue, to begin with a smaller micro-batch."""
    search = _Below("search")
    """The folder of the search for a micro-batch: a small attempt of its own, before the training."""
    did_not_fit = _EachBelow("did-not-fit-{}.json")
    """Of a search: the micro-batch that a rank had no memory for."""
    logs = _Below("logs")  # logs of the launcher and of each rank
    ranks = _Below("ranks")  # a record per rank of how it ended
    rank_record = _EachBelow("ranks/rank-{}.json")
    heartbeat = _EachBelow("heartbeat-{}.json")  # written by a node's agent while it watches
    reserve = _EachBelow("reserve-{}")  # room for a node's outcome, should the disk fill up meanwhile
    outcome = _EachBelow("outcome-{}.json")  # a node's evidence, complete or absent
    launcher_log = _EachBelow("logs/launcher-{}.log")  # output of the launcher on a node


@dataclass(frozen=True)
class RunPaths:
    """The folder of a run, which outlives its attempts."""

    dir: Path

    @property
    def root(self) -> Path:
        """The campaign's `dir`."""
        return self.dir.parents[2]

    @property
    def campaign_marker(self) -> Path:
        """That of the campaign: `CampaignPaths.marker`."""
        return self.dir.parents[1] / MARKER

    checkpoints = _EachBelow("checkpoints/{}")
    """The checkpoints of one experiment of the run, by its hash: a changed experiment keeps the run's name."""

    def forward_state(self, config_hash: str, tool: str) -> Path:
        """The part of one experiment of the run that a tool has, and its id there."""
        return self.forward / f"{config_hash}-{tool}.json"

    forward = _Below("forward")  # files of the run for other tools
    current = _Below("current")  # the generation that may write; older agents end themselves

    def attempt(self, generation: int) -> AttemptPaths:
        """The folder of an attempt."""
        return AttemptPaths(self.dir / f"g{generation:04d}")


@dataclass(frozen=True)
class CampaignPaths:
    """The folder of a campaign below the shared ``root``."""

    root: Path
    campaign: str

    @cached_property
    def dir(self) -> Path:
        """The campaign's folder."""
        return self.root / self.campaign

    marker = _Below(MARKER)
    """The marker of the folder. If it is missing, so is the shared folder."""
    runs = _Below("runs")  # the folders of all runs
    batches = _Below("batches")  # the folders of all job arrays
    batch = _EachBelow("batches/{}")  # the folder of a job array, by its token: payloads, submission file, Slurm's logs
    found_micro_batch = _EachBelow("searches/{}.json")
    """The first micro-batch that was found for runs with a key of `Payload.search`."""

    @cached_property
    def data(self) -> Path:
        """Prepared data, shared by all campaigns under the same root."""
        return self.root / Beside.DATA

    def code(self, name: str) -> Path:
        """The copy of the code with that hash, shared by all campaigns like the data."""
        return self.root / Beside.CODE / name

    def run(self, name: str) -> RunPaths:
        """The folder of a run."""
        return RunPaths(self.runs / name)

    def spool(self, run: str, generation: int) -> str:
        """The text of `run(run).attempt(generation).metrics`: paths of thousands take long to make."""
        return f"{self.runs}/{run}/g{generation:04d}/metrics.jsonl"


def payloads_file(batch_dir: Path) -> Path:
    """The payloads of a batch, see `job_array`."""
    return batch_dir / "payloads.jsonl"


def closed_file(batch_dir: Path) -> Path:
    """The tasks of the batch that no job may begin any more, see `job_array`."""
    return batch_dir / "closed"


def cluster_file(batch_dir: Path) -> Path:
    """The name of the cluster to which the batch was submitted."""
    return batch_dir / "cluster"
