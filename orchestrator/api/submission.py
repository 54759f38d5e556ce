"""Reads specs, and submits them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.files.private_files import make_private
from dscampaign.orchestrator.campaign.desired import record
from dscampaign.orchestrator.campaign.gpu_hours import GpuHours
from dscampaign.orchestrator.campaign.location import Location, PlaceOptions
from dscampaign.orchestrator.campaign.plan import Sign, make_plan
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.commands import overridden
from dscampaign.orchestrator.doctor.check_slurm import Preflight
from dscampaign.orchestrator.doctor.option_checks import OptionChecks
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.local import local_gpus
from dscampaign.orchestrator.executors.storage import require_room
from dscampaign.orchestrator.formatting import count, rough
from dscampaign.orchestrator.settings import Settings
from dscampaign.orchestrator.spec.load import runs_of_text
from dscampaign.orchestrator.spec.yaml_source import load, read_text, written

UNNAMED = Path("spec")
"""Stands for the file of a spec that is a mapping; its paths start in the present folder."""
_EXPONENT: Final = re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+")


def read_spec(spec: Path | Mapping[str, Any], sets: Sequence[str], tell: Callable[[str], None]) -> Submission:
    """Read, check and expand a spec, a file or its content; `located` finds its campaign.

    `sets` replace values of the spec, as `train.steps=10`; `tell` gets a line for each remark, and for each check that
    takes a while. Raises SpecError with the errors of the spec, and UserError for a file that cannot be read.
    """
    path, source = (spec, read_text(spec)) if isinstance(spec, Path) else (UNNAMED, _text_of(spec))
    read, runs = runs_of_text(source, path, sets, local_gpus=local_gpus, check_options=OptionChecks(tell))
    text = written(load(source, str(path)).data)  # without comments: they may hold anything
    text = "".join([text, *(f"# --set {override}\n" for override in sets)])
    return Submission(read, text, runs, Path(read.dir), path.absolute(), source)


def located(read: Submission, spec: object, sets: Sequence[str], place: PlaceOptions) -> tuple[Submission, Location]:
    """Find the campaign of a spec, from its file or content; raise UserError as `Location.of` does."""
    values = {"dir": read.spec.dir if "dir" in read.spec.model_fields_set else None, "store": read.spec.store}
    location = Location.of(place, values, (read.spec.name,), spec if isinstance(spec, Path) else None)
    location.settings.require_dir_of(read.spec.executor)
    overridden(sets)
    return replace(read, dir=location.settings.dir), location


def _text_of(spec: Mapping[str, Any]) -> str:
    try:
        return written(_with_numbers(to_jsonable_python(spec, fallback=_plain)))
    except ValueError as error:
        hint = "use text, numbers, true, false, lists and mappings"
        raise UserError(f"a spec cannot hold this: {error}", hint) from error


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of numpy, pandas and torch
        return value.tolist()
    if isinstance(value, Collection):  # such as a range
        return list(value)
    raise ValueError(repr(value))


def _with_numbers(value: Any) -> Any:
    """Read `1e-4` as a number: for `yaml.safe_load` it is text. Commands and variables stay text."""
    if isinstance(value, dict):
        return {key: inner if key in ("command", "env") else _with_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


class Proposal:
    """A submission beside its campaign: `plan` is its effect.

    Raises UserError if the spec contradicts the campaign, its folder cannot be used, or Slurm would refuse a job,
    SpecError if its command has mistakes, and StoreError if the store cannot be read or written.
    """

    def __init__(self, submission: Submission, location: Location) -> None:
        self._submission, self._location = submission, location
        self._store = location.open_if_any()
        if self._store is not None:
            self._store.check_writable()
        else:
            require_room(submission.dir)
        preflight = Preflight(submission.runs)
        self.plan = make_plan(self._store, submission)
        if self.plan.starting:
            preflight.require_accepted()
            self.plan = replace(self.plan, first_start_s=preflight.first_start_s())

    @property
    def doubt(self) -> str | None:
        """The reason to confirm it: it ends runs, or is large; None without any."""
        if ends := self.plan.count(Sign.CANCEL):
            return f"this cancels {count(ends, 'run')}"
        runs = len(self.plan.starting) + len(self.plan.following) + self.plan.later
        return large(self._location.settings, runs, self.plan.hours or GpuHours())

    def record(self) -> tuple[Store, CampaignRow]:
        """Record its runs as desired, in a new store if there is none; a pass submits them."""
        if self._store is None:
            make_private(self._location.settings.dir)
            self._store = self._location.open(create=True)
        return self._store, record(self._store, self._submission)


def large(settings: Settings, runs: int, hours: GpuHours) -> str | None:
    """Return the limit that so many runs and GPU-hours exceed, as text; None if they exceed none."""
    if runs > settings.ask_above_runs:
        return f"{count(runs, 'run')} exceed ask_above_runs = {settings.ask_above_runs}"
    if hours.expected > settings.ask_above_gpu_hours:
        most = "" if hours.likely is None else f" (likely; at most {rough(hours.most)})"
        return f"{rough(hours.expected)} GPU-hours{most} exceed ask_above_gpu_hours = {settings.ask_above_gpu_hours:g}"
    return None
