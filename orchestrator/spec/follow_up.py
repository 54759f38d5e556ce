"""The runs that follow a completed run: its evaluation or export, each a job of its own. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dscampaign.db.states import Stage
from dscampaign.orchestrator.errors import Finding, InvalidSpec

from .expand import Run
from .matrix import Texts, fields_of
from .model import RunConfig, Spec
from .validate import check

_CHECKPOINT: Final = "checkpoint"
_OF_TRAINING: Final = frozenset(
    """steps epochs schedule_steps warmup_steps micro_batch global_batch checkpoint_every keep_best eval_every
    profile_at sequence_parallel tensor_parallel""".split()  # noqa: SIM905
)
"""Fields of `train` that a script which trains nothing has no use for."""

_REPEAT: Final = re.compile(r"r\d+")
"""The end of the name of a repeat."""


def name_of(name: str, stage: str, repeat: int) -> str:
    """Return the name of the follow-up of a run."""
    suffix = f"-r{repeat}" if repeat else ""
    return f"{name.removesuffix(suffix)}-{stage}{suffix}"


def follow_up(
    section: Mapping[str, Any],
    stage: str,
    name: str,
    config: RunConfig,
    params: Mapping[str, Any],
    repeat: int,
    config_hash: str,
    checkpoint: str,
) -> Run:
    """Return the run of a stage after a run of this name, configuration, values and digest; raise InvalidSpec."""
    base = config.model_dump(mode="json", exclude_none=True, exclude={"prune", "deepspeed", "launcher_options"})
    train = {key: value for key, value in base["train"].items() if key not in _OF_TRAINING}
    slurm = {**base["slurm"], **(section.get("slurm") or {})}
    own = {"command": list(section["command"]), "ranks_per_node": section["ranks_per_node"], "metrics": {}}
    made = RunConfig.read({**base, "launcher": None, **own, "train": train, "slurm": slurm})
    made = made.model_copy(update={"launcher": made.launcher or "python"})
    known = {**fields_of(config, repeat), **params, "run": name, _CHECKPOINT: checkpoint}
    made = made.model_copy(update=Texts(made).filled(known))
    identity = [name, stage, section["command"], config_hash]
    return Run(
        name=name_of(name, stage, repeat),
        params={**params, "stage": stage},
        repeat=repeat,
        config=made,
        config_hash=hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16],
        stage=Stage.THEN,
    )


def findings(spec: Spec, runs: Sequence[Run]) -> Iterator[Finding]:
    """Find the errors of the stages, after the first run of a spec; and names that another run has."""
    run, taken = runs[0], {run.name for run in runs}
    for stage, section in spec.then.items():
        place = ("then", stage)
        names = {name_of(each.name, stage, each.repeat) for each in runs}
        if _REPEAT.fullmatch(stage):
            yield Finding((place,), "would be the name of a repeat", "choose another name")
        elif same := names & taken:
            yield Finding((place,), f"would name a follow-up like another run, {min(same)}", "choose another name")
        try:
            fields = section.model_dump(mode="json")
            made = follow_up(fields, stage, run.name, run.config, run.params, run.repeat, "", _CHECKPOINT)
            wrong = check(made.config, made.world_size)
        except InvalidSpec as error:
            wrong = list(error.findings)
        for each in wrong:
            yield Finding((*((*place, *at) for at in each.places), (*place, "command")), each.message, each.hint)
