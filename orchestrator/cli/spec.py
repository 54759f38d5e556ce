"""Reads specs, and the commands about them, which change nothing but files: init, validate, plan, render."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dscampaign.orchestrator.campaign.location import Location, PlaceOptions
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import EXIT_OK, SpecError, UserError, did_you_mean
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.pages.text import table
from dscampaign.orchestrator.user_files import check_folder_of, content_of, whole_file

from .console import echo, echo_err, echo_json, echo_page, json_option, page_for, progress_shown, store_options, verb

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.submission import Submission
    from dscampaign.orchestrator.spec.expand import Run

spec_argument: Final = click.argument("spec", metavar="SPEC", type=click.Path(path_type=Path))
set_option: Final = click.option(
    "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Override a field of the spec; repeatable."
)


def read_submission(path: Path, sets: Sequence[str], place: PlaceOptions) -> tuple[Submission, Location]:
    """Read a spec as `api.submission` does, find its campaign, and print its remarks."""
    from dscampaign.orchestrator.api.submission import located, read_spec

    return located(read_spec(path, sets, echo_err), path, sets, place)


def warn_of_other_store(location: Location) -> None:
    """Warn that the campaign may have been submitted from the spec's own folder: here all of it would run again."""
    if location.beside_spec:
        echo_err(f"warning: there is no store at {location.file}; {location.beside_spec}")


@verb
@click.argument("path", type=click.Path(path_type=Path), default="campaign.yaml")
@click.option("--from", "template", metavar="NAME", default="starter", show_default=True, help="Template to copy.")
@click.option(
    "--scale",
    type=click.Choice(("full", "smoke")),
    default="full",
    help="`smoke`: a tiny model for this machine's CPU.",
)
@click.option(
    "--from-sbatch",
    "script",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Take over this script.",
)
@click.option("--list", "list_only", is_flag=True, help="List the templates instead.")
def init(path: Path, template: str, scale: str, script: Path | None, list_only: bool) -> None:
    """Write a spec from a template, or from an sbatch script.

    Never overwrites a file. Comments account for each line of an sbatch script.

    Examples:
      campaign init --from five-strategies --scale smoke
      campaign init --from-sbatch train.sbatch
    """
    from dscampaign.orchestrator.spec import templates

    if script:
        _from_sbatch(script, path)
    elif list_only:
        lines = [(item.name, "yes" if "smoke" in item.specs else "", item.summary) for item in templates.templates()]
        echo_page("\n".join(table(page_for(sys.stdout), ("template", "smoke", "about"), lines)))
    else:
        check_folder_of(path)
        written = templates.write(templates.find(template), scale, path)
        then = f"`{typed('submit', str(path), '--watch')}` runs it here"
        then = then if scale == "smoke" else f"edit it, then `{typed('plan', str(path))}`"
        echo_err(f"wrote {' and '.join(map(str, written))}; {then}")


def _from_sbatch(script: Path, path: Path) -> None:
    from dscampaign.orchestrator.spec.from_sbatch import spec_of
    from dscampaign.orchestrator.spec.sbatch_draft import options_of, yaml_of
    from dscampaign.orchestrator.spec.templates import write_new

    check_folder_of(path)
    text = content_of(script).decode(errors="replace").replace("\r\n", "\n")
    draft = spec_of(text, script.stem, os.environ)
    if not any(options_of(text)) and (draft.line is None or script.suffix == ".py"):
        hint = "name the file that you pass to sbatch; for a training script, write a spec: `campaign init`"
        raise UserError(f"{script} is not a batch script: it has no #SBATCH line", hint)
    write_new({path: yaml_of(draft, script.name)})
    counts = f"taken over: {len(draft.taken)}, no longer needed: {len(draft.needless)}"
    read = f"not understood: {len(draft.unclear)}); read its comments, then `{typed('validate', str(path))}`"
    echo_err(f"wrote {path} ({counts}, {read}")


@verb
@spec_argument
@set_option
@json_option
def validate(spec: Path, sets: Sequence[str], as_json: bool) -> int:
    """Check a spec and all its runs.

    Reports all wrong or contradictory fields with their lines, and settings that do not reach the command.

    Examples:
      campaign validate campaign.yaml
    """
    from dscampaign.orchestrator.api.submission import located, read_spec
    from dscampaign.orchestrator.campaign.script_checks import checked_code
    from dscampaign.orchestrator.spec.validate import remarks

    try:
        read = read_spec(spec, sets, echo_err)
        checked_code(located(read, spec, sets, PlaceOptions())[0])
    except SpecError as error:
        if not as_json:
            raise
        echo_json({"valid": False, "errors": [asdict(problem) for problem in error.problems]})
        return error.exit_code
    name, names = read.spec.name, [run.name for run in read.runs]
    notes = remarks(run.config for run in read.runs)
    if as_json:
        echo_json({"campaign": name, "valid": True, "runs": names, "notes": notes})
    else:
        echo(f"{spec}: ok · {name}, {count(len(names), 'run')}")
        for remark in notes:
            echo_err(f"note: {remark}")
    return EXIT_OK


@verb
def schema() -> None:
    """Print the JSON schema of a spec, for editors.

    Examples:
      campaign schema > campaign.schema.json
    """
    from dscampaign.orchestrator.spec.schema import spec_schema

    echo(json.dumps(spec_schema(), indent=1))


@verb
@spec_argument
@click.argument("run", required=False)
@set_option
@click.option("--all", "everything", is_flag=True, help="Show every run, even if there are hundreds.")
@store_options
@json_option
def plan(
    spec: Path, run: str | None, sets: Sequence[str], everything: bool, place: PlaceOptions, as_json: bool
) -> None:
    """Show the effect of submitting a spec.

    Changes nothing. Lists runs with batches, parameters, and the memory of weights, gradients and optimizer states on a
    GPU. With RUN, shows its DeepSpeed configuration.

    Examples:
      campaign plan campaign.yaml zero_stage-2
      campaign plan campaign.yaml --json | jq '.runs[0].ds_config'
    """
    from dscampaign.orchestrator.campaign.plan import make_plan
    from dscampaign.orchestrator.doctor.check_slurm import Preflight
    from dscampaign.orchestrator.pages.plan import config_page, plan_document, plan_page

    with progress_shown(quiet=as_json):
        submission, location = read_submission(spec, sets, place)
        warn_of_other_store(location)
        preflight = Preflight(submission.runs)
        planned, page = make_plan(location.open_if_any(), submission), page_for(sys.stdout)
        planned = replace(planned, first_start_s=preflight.first_start_s())
    if planned.trouble:
        echo_err(f"{planned.trouble.message}: resubmissions may be missing")
    if run:
        chosen = _chosen(run, [item.run for item in planned.runs if item.run])
        planned = replace(planned, runs=tuple(item for item in planned.runs if item.run is chosen))
    if as_json:
        echo_json(plan_document(planned))
    elif run:
        echo(config_page(planned.runs[0], page))
    else:
        echo_page(plan_page(planned, page, everything=everything))
    if planned.starting:
        preflight.require_accepted("`submit` would be refused")


@verb
@spec_argument
@click.argument("run", required=False)
@click.option("--output", type=click.Path(path_type=Path), help="File to write or replace.  [default: standard output]")
@set_option
@store_options
def render(spec: Path, run: str | None, output: Path | None, sets: Sequence[str], place: PlaceOptions) -> None:
    """Write a batch script for a run.

    The script needs neither store nor reconciler, and writes to its own folder.

    Examples:
      campaign render campaign.yaml zero_stage-2 --output run.sbatch && sbatch run.sbatch
    """
    from dscampaign.orchestrator.campaign.standalone import render_run

    submission, _ = read_submission(spec, sets, place)
    script = render_run(submission, _chosen(run, submission.runs))
    if output is None:
        echo(script.rstrip("\n"))
        return
    check_folder_of(output, spec)
    with whole_file(output) as stream:
        stream.write(script)
    echo_err(f"wrote {output}; `sbatch {shlex.quote(str(output))}` runs it")


def _chosen(word: str | None, runs: Sequence[Run]) -> Run:
    """Return the run of this name, see `matching`, or else the only one. Raises UserError for none or several."""
    from dscampaign.orchestrator.campaign.titles import candidates, matching

    names = [run.name for run in runs]
    if word is not None:
        params = {run.name: run.params for run in runs if run.repeat == 0}
        if not (found := [run.name for run in matching(word, candidates(names, params))]):
            hint = did_you_mean(word, names, f"there are: {some(names, 5)}")
            raise UserError(f"no run named {word}", hint)
        names = found
    if len(names) != 1:
        raise UserError("a single run at a time" if word else "which run?", f"there are: {some(names, 5)}")
    return next(run for run in runs if run.name == names[0])
