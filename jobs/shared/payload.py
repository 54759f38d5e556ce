"""The payload, which the reconciler hands to the agents of an attempt: a JSON file, never a pickle.

See docs/adr/0001-json-payload.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from dscampaign.files.atomic_files import write_atomically

from .documents import EXACT, Document, decode
from .layout import AttemptPaths, RunPaths
from .micro_batch_search import SEARCH_PASSES
from .state_layout import arrangement, ranks_per_sample

SETUP_PYTHON: Final = "CAMPAIGN_PYTHON"
"""The variable in which the shell that starts an agent names the Python that the lines of `setup` chose."""


@dataclass(frozen=True)
class Payload(Document):
    """One attempt, complete: an agent needs nothing else to run it."""

    closed: ClassVar[bool] = True  # a job runs it, and it holds the spec's `env`
    __pydantic_config__ = EXACT

    campaign: str
    run: str
    generation: int
    token: str
    attempt_id: int
    run_dir: str
    attempt_dir: str
    data_dir: str
    config_hash: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    python: str  # the interpreter of the launcher and the ranks, unless `setup_chooses` and `setup` names another
    command: tuple[str, ...]  # script and arguments for each rank; ``["-m", module, ...]`` runs a module
    global_batch: int | None
    micro_batch: int | None
    accumulation: int | None
    seed: int
    target_step: int | None  # optimizer step at which the run is complete; None if only the script knows
    steps_decide: bool  # true if exit 0 before ``target_step`` is not success (the built-in trainer)
    ds_config: Mapping[str, Any]
    # the built-in trainer's configuration, or None for a script of the user's own
    train: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None  # URL without a password, or None if agents must leave the store alone (SQLite)
    # limit on each rank's memory of its GPU, else on its address space; None for none
    mem_per_process_bytes: int | None = None
    user_patterns: tuple[str, ...] = ()  # regular expressions whose lines in a log are worth keeping
    min_resume_step: int = 0  # step of the newest checkpoint in the store; resuming from an older one is an event
    telemetry_s: float = 0.0  # seconds between two samples of the node's GPUs, 0 for none
    params: Mapping[str, Any] = field(default_factory=dict)  # the matrix's values for the run, by short names
    # regular expressions that find metrics in the output of a script of the user's own
    metrics: Mapping[str, str] = field(default_factory=dict)
    # tools that get its metrics too, each with its options
    forward: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    workdir: str = ""  # folder in which the ranks start; "" for the agent's own
    code: str = ""  # the copy of the code that the ranks run, see `code_copy`; "" for none
    # runs with the same key train with the same micro-batch, which the first of them searches for from ``micro_batch``
    # on; "" if it is given
    search: str = ""
    # retry_epoch, changes: the attempt's fields in the store, for a store that has lost it
    retry_epoch: int = 0
    changes: str = ""
    recorded_s: float = 0.0  # when the attempt's campaign was recorded, 0 if unknown: a new store records it anew
    setup_chooses: bool = False
    launcher: str = "deepspeed"
    launcher_options: tuple[str, ...] = ()
    container: Mapping[str, Any] | None = None
    # task, position: its place in a job that runs several attempts; None if it has the job for itself
    task: int | None = None
    position: int | None = None
    # how long it will likely take, if like runs have shown it; only of a job that runs several
    likely_s: float | None = None
    job_token: str = ""  # the array of that job, which ran already when the attempt was submitted; "" for its own

    @property
    def paths(self) -> AttemptPaths:
        """Return the paths of the attempt."""
        return AttemptPaths(Path(self.attempt_dir))

    @property
    def run_paths(self) -> RunPaths:
        """Return the paths of its run."""
        return RunPaths(Path(self.run_dir))

    @property
    def world_size(self) -> int:
        """Return the data-parallel ranks over all nodes."""
        return self.nodes * self.ranks_per_node

    def resized(self, micro_batch: int, accumulation: int) -> Payload:
        """Return the same optimizer steps in other pieces: other sizes in DeepSpeed's and the trainer's configuration.

        Raises ValueError: it would be another global batch, or a larger micro-batch that nobody searched for.
        """
        if self.micro_batch is None or self.accumulation is None:
            raise ValueError("the script manages its own batches")
        if (
            micro_batch * accumulation != self.micro_batch * self.accumulation
            or micro_batch < 1
            or (micro_batch > self.micro_batch and not self.search)
        ):
            raise ValueError(f"{micro_batch} x {accumulation} instead of {self.micro_batch} x {self.accumulation}")
        return self._with_sizes(micro_batch, accumulation)

    def write_configs(self, paths: AttemptPaths) -> None:
        """Write the configurations that the ranks read: DeepSpeed's, and the built-in trainer's."""
        write_atomically(paths.ds_config, json.dumps(self.ds_config, indent=1))
        if self.train:
            write_atomically(paths.train_config, json.dumps(self.train, indent=1))

    def searching(self, micro_batch: int, seconds: float, too_big: int | None = None) -> Payload:
        """Return the payload of a search from this size on: few passes a step, and no other end."""
        assert self.share is not None
        whole = micro_batch * SEARCH_PASSES * self.world_size
        payload = self._with_sizes(micro_batch, SEARCH_PASSES)
        plan = {
            "global_batch": whole // ranks_per_sample(self.train or {}),
            "search": {"share": self.share, "seconds": seconds, "too_big": too_big},
        }
        return replace(
            payload, train={**(payload.train or {}), **plan}, ds_config={**payload.ds_config, "train_batch_size": whole}
        )

    @property
    def share(self) -> int | None:
        """Return one rank's samples in an optimizer step; None for a script that manages its own batches."""
        return None if self.micro_batch is None else self.micro_batch * (self.accumulation or 1)

    def _with_sizes(self, micro_batch: int, accumulation: int) -> Payload:
        sizes = {"micro_batch": micro_batch, "accumulation": accumulation}
        names = {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": accumulation}
        return replace(
            self,
            micro_batch=micro_batch,
            accumulation=accumulation,
            train=None if self.train is None else {**self.train, **sizes},
            ds_config={**self.ds_config, **names},
        )

    @property
    def arrangement(self) -> str | None:
        """Return the layout of the built-in trainer's checkpoints; None for a script of the user's own."""
        return arrangement(self.train) if self.train else None

    @classmethod
    def of(cls, raw: object, path: Path) -> Payload:
        """Return the payload of a value from the file at `path`. Raises ValueError if it is not of this version."""
        try:
            return decode(cls, raw)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True)
class Identity:
    """An attempt of a submission, by the field names of claims, starts and outcomes.

    A store that was lost may give a generation again.
    """

    token: str
    config_hash: str
    generation: int

    @classmethod
    def of(cls, attempt: Any) -> Self:
        """Return the identity of a payload, or of an attempt in the store."""
        return cls(attempt.token, attempt.config_hash, attempt.generation)

    def owns(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record may be this attempt's. Records of earlier versions have fewer fields."""
        return all(record.get(name) in (None, "", 0, value) for name, value in asdict(self).items())
