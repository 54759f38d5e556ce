"""The spec that a command is given: its argument, `--set`, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dscampaign.orchestrator.campaign.location import Location, PlaceOptions
from dscampaign.orchestrator.commands import overridden

from .output import echo_err

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.desired import Submission
    from dscampaign.orchestrator.spec.expand import Run
    from dscampaign.orchestrator.spec.model import Spec

spec_argument: Final = click.argument("spec", metavar="SPEC", type=click.Path(path_type=Path))
set_option: Final = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override a field of the spec; repeatable.",
)


def read_runs(path: Path, sets: Sequence[str]) -> tuple[Spec, tuple[Run, ...]]:
    """Read, check and expand a spec, wherever its campaign is.

    Raises SpecError with all errors of the spec, UserError if it cannot be read.
    """
    from dscampaign.orchestrator.doctor.option_checks import OptionChecks
    from dscampaign.orchestrator.executors.local import local_gpus
    from dscampaign.orchestrator.spec.load import load_runs

    check_options = OptionChecks(echo_err)
    read = load_runs(path, sets, local_gpus=local_gpus(), check_options=check_options)
    for remark in check_options.remarks:
        echo_err(f"note: {remark}")
    return read


def read_submission(path: Path, sets: Sequence[str], place: PlaceOptions) -> tuple[Submission, Location]:
    """As `read_runs`, and finds where the campaign is; raises UserError also if a configuration file cannot be read."""
    from dscampaign.orchestrator.campaign.desired import Submission
    from dscampaign.orchestrator.spec.yaml_source import load, written

    spec, runs = read_runs(path, sets)
    given = {"dir": spec.dir if "dir" in spec.model_fields_set else None, "store": spec.store}
    where = Location.of(place, given, (spec.name,), path)
    overridden(sets)
    data = load(path.read_text(encoding="utf-8"), str(path)).data
    text = written(data)  # without comments: they may hold anything
    text = "".join([text, *(f"# --set {override}\n" for override in sets)])
    return Submission(spec, text, runs, where.settings.dir, path.absolute()), where


def warn_of_other_store(where: Location) -> None:
    """Warn that the campaign may have been submitted from the spec's own folder: here all of it would run again."""
    if where.beside_spec:
        echo_err(f"warning: there is no store at {where.file}; {where.beside_spec}")
