"""A spec that is about to be submitted: checked, expanded, with the rules and runs that the store is to have."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dscampaign.db.records import RunRow
from dscampaign.db.states import Stage
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.executors.local import local_gpus
from dscampaign.orchestrator.reconcile.follow_ups import follow_ups_of
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.orchestrator.spec.objective import objective_of
from dscampaign.orchestrator.spec.trials import CONFIRMS, TrialTemplate, number_of
from dscampaign.orchestrator.user_files import expanded

from .code_copies import CodeCopies


@dataclass(frozen=True)
class Submission:
    """A checked and expanded spec, with its text for the store, and as it was read."""

    spec: Spec
    text: str
    runs: tuple[Run, ...]
    dir: Path
    spec_path: Path
    source: str = ""

    @cached_property
    def workdir(self) -> Path:
        """The folder in which attempts start; symbolic links stay, as a node may see another folder behind one."""
        return Path(os.path.abspath(Path(self.spec_path.parent, expanded(self.spec.workdir or ""))))  # noqa: PTH100

    @property
    def rules(self) -> dict[str, Any]:
        """The rules of later commands, as a campaign's provenance keeps them; None for rules that the spec omits."""
        rules = {name: getattr(self.spec, name) for name in ("objective", "loss_margin", "baseline")}
        for name, section in (("retention", self.spec.retention), ("notify", self.spec.notify)):
            rules[name] = section.model_dump(exclude_none=True) if section else None
        rules["reconciler"] = self.spec.reconciler.options(self.spec.slurm)
        if search := self.spec.search:
            rules["objective"] = rules["objective"] or objective_of(search.objective)
        return rules | {"search": {**self.template.document, "open": True} if search else None}

    @property
    def template(self) -> TrialTemplate:
        """The template of the trials of a search."""
        return TrialTemplate.of(self.spec, local_gpus() if self.spec.executor == "local" else 0)

    def with_trials(self, stored: Sequence[RunRow]) -> Submission:
        """Return the submission with the trials and follow-ups that are stored already, as the spec has them now."""
        runs = {run.name: run for run in (*self.runs, *self._trials(stored))}
        stages, paths = self.stages, CampaignPaths(self.dir, self.spec.name)
        full = [run for run in runs.values() if run.stage is Stage.FULL]
        return replace(self, runs=(*runs.values(), *follow_ups_of(stored, full, stages, paths)))

    @property
    def stages(self) -> dict[str, Any]:
        """The follow-ups of a run, by name, for the store."""
        return {stage: section.model_dump(mode="json") for stage, section in self.spec.then.items()}

    def _trials(self, stored: Sequence[RunRow]) -> Iterator[Run]:
        if self.spec.search is None:
            return
        again, rows = self.template, [row for row in stored if row.stage is Stage.TRIAL or row.ordinal >= CONFIRMS]
        for row in rows:
            number = number_of(row.ordinal)
            if row.stage is Stage.TRIAL:
                yield again.trial(number, row.params, row.target_step)
            elif row.stage is Stage.FULL:
                yield again.confirmation(number, row.params, row.repeat)

    def codes(self, *, make: bool) -> CodeCopies:
        """Return the copies of the code of its runs; `make`: not only looked up, but made."""
        return CodeCopies(self.dir, self.spec_path, self.workdir, make)
