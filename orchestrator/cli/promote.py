"""The command promote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import EXIT_OK, UserError, did_you_mean
from dscampaign.orchestrator.formatting import clean, count, some
from dscampaign.orchestrator.output_files import check_folder_of, whole_file

from .completion import campaign_argument
from .options import json_option, store_options, verb
from .output import echo_either, echo_next
from .progress import progress_shown
from .report import needs_the_extra, results_of_campaign

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.promotion import Promotion
    from dscampaign.orchestrator.report.compare.conditions import Condition
    from dscampaign.orchestrator.report.compare.results import Results

_SHOWN: Final = 8
"""Conditions that a hint names."""


@verb
@campaign_argument
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Optimizer steps of the longer run.")
@click.option("--condition", metavar="CONDITION", help="Condition to run.  [default: the recommended]")
@click.option("--output", type=click.Path(path_type=Path), help="File to write.  [default: NAME-STEPS-steps.yaml]")
@store_options
@json_option
def promote(
    name: str | None, steps: int, condition: str | None, output: Path | None, place: PlaceOptions, as_json: bool
) -> int:
    """Write the spec of one longer run of the recommended condition.

    It is the campaign's spec as submitted, without comments, matrix, repeats and screening, with the settings of that
    condition and a new name. Notes list the settings that depend on the number of steps. Without a proven
    recommendation, name a condition.

    Examples:
      campaign promote sweep --steps 20000
      campaign promote sweep --steps 20000 --condition zero_stage-3 --output long.yaml
    """
    with needs_the_extra(), progress_shown(quiet=as_json):
        from statistics import median

        from dscampaign.db import queries
        from dscampaign.orchestrator.campaign.promotion import promote as make

        opened, results = results_of_campaign(name, None, place)
        chosen = _named(results, condition) if condition else _recommended(results)
        with opened.read() as conn:
            row = queries.run_by_name(conn, results.campaign.id, chosen.runs[0].name)
        assert row is not None
        out = (output or Path(f"{results.campaign.name}-{steps}-steps.yaml")).absolute()
        check_folder_of(out)
        if out.exists():
            raise UserError(f"{out} already exists", "name another file: --output FILE")
        times_s = [run.timing.step_s for run in chosen.counted if run.timing and run.timing.step_s > 0]
        made = make(results.campaign, chosen.name, row, steps, out, step_s=median(times_s) if times_s else None)
        with whole_file(out) as stream:
            stream.write(made.text)
    shown = str(output or out.name)
    origin = {"campaign": results.campaign.name, "condition": chosen.name, "steps": steps}
    document = {"file": str(out), "name": made.name, **origin, "fixed": made.fixed, "notes": made.notes}
    echo_either(as_json, lambda: document, lambda _: "\n".join(_lines(made, chosen, shown)))
    echo_next(typed("plan", shown))
    return EXIT_OK


def _recommended(results: Results) -> Condition:
    found = [workload.answer for workload in results.workloads]
    if len(found) == 1 and found[0].chosen and found[0].proven:
        return found[0].chosen
    reason = clean(found[0].sentence) if len(found) == 1 else f"{results.campaign.name} has {len(found)} workloads"
    hint = f"name a condition with --condition: {some([c.name for c in results.conditions], _SHOWN)}"
    raise UserError(f"no condition is recommended: {reason}", hint)


def _named(results: Results, name: str) -> Condition:
    known = {condition.name: condition for condition in results.conditions}
    if name not in known:
        hint = did_you_mean(name, known, f"one of: {some(list(known), _SHOWN)}")
        raise UserError(f"no condition named {name} in {results.campaign.name}", hint)
    return known[name]


def _lines(made: Promotion, chosen: Condition, shown: str) -> Iterator[str]:
    yield f"{shown}: one run of {chosen.name}, {count(made.run.target_step or 0, 'step')}, as the campaign {made.name}"
    yield from (f"  {one}" for one in made.fixed)
    if made.notes:
        yield ""
    yield from made.notes
