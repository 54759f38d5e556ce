"""Commands that write results for other programs: export, promote, weights."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.commands import counted, typed
from dscampaign.orchestrator.errors import UserError, needs_the_extra
from dscampaign.orchestrator.formatting import clean, count, printable, size, some
from dscampaign.orchestrator.user_files import check_folder_of, whole_file

from .console import campaign_argument, echo_err, echo_next, echo_page, names, progress_shown, store_options, verb

FORMATS: Final = ("csv", "json", "parquet")
TABLES: Final = ("steps", "runs", "attempts", "gpus", "events")


@verb
@campaign_argument
@click.option("--what", type=click.Choice(TABLES), default="steps", show_default=True, help="Rows to export.")
@click.option("--output", type=click.Path(path_type=Path), help="File to write or replace.  [default: standard output]")
@store_options
@click.option("-o", "--format", "form", type=click.Choice(FORMATS), help="Format.")
@click.option("--json", "as_json", is_flag=True, help="Short for `-o json`.")
def export(
    name: str | None, form: str | None, as_json: bool, what: str, output: Path | None, place: PlaceOptions
) -> None:
    """Export a campaign's results as CSV, JSON or Parquet.

    Each step appears once, of the newest attempt that ran it. The default format is that of the file's name, else CSV.

    Examples:
      campaign export sweep --output steps.csv
      campaign export sweep --what runs -o json | jq '.rows[].loss'
    """
    from dscampaign.db.campaigns import thinned_runs
    from dscampaign.orchestrator.campaign.selection import open_campaign
    from dscampaign.orchestrator.export.arrow import require_pyarrow, write_parquet
    from dscampaign.orchestrator.export.rows import columns_and_rows, write_csv, write_json

    form = "json" if as_json else form or (output and output.suffix.removeprefix(".").lower()) or "csv"
    if form not in FORMATS:
        raise UserError(f"there is no format for {output}", "end its name in .csv, .json or .parquet, or add --format")
    if form == "parquet":
        require_pyarrow()
        if output is None:
            raise UserError("Parquet cannot be printed", f"name a file: --output {what}.parquet")

    opened, campaign = open_campaign(place, name)
    writers: dict[str, Callable[..., int]] = {"csv": write_csv, "json": write_json, "parquet": write_parquet}
    with (
        _output(output, form) as stream,
        columns_and_rows(opened, campaign, what) as (columns, rows),
        progress_shown(quiet=output is None and sys.stdout.isatty()),
    ):
        number = writers[form](stream, campaign.name, what, columns, counted("rows", rows))
    echo_err(f"{number:,} rows" + (f" in {output}" if output else ""))
    if what in ("steps", "gpus"):
        with opened.read() as conn:
            thinned = thinned_runs(conn, campaign.id)
        if thinned:
            few = f"as few as 1 row in {max(thinned.values())} is left"
            echo_err(f"{count(len(thinned), 'run')} thinned: {few}")


@contextmanager
def _output(path: Path | None, form: str) -> Iterator[IO[Any]]:
    """A stream to write to inside a transaction: a pager may wait, and gets all rows after it."""
    if path:
        check_folder_of(path)
    try:
        if path is not None:
            with whole_file(path, binary=form == "parquet") as stream:
                yield stream
            return
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as rows:
            yield rows
            rows.seek(0)
            sys.stdout.writelines(map(printable, rows) if sys.stdout.isatty() else rows)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {path or 'the rows'}: {error.strerror}") from error


@verb
@campaign_argument
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Optimizer steps of the longer run.")
@click.option("--condition", metavar="CONDITION", help="Condition to run.  [default: the recommended]")
@click.option(
    "--output", type=click.Path(path_type=Path), help="File to write.  [default: NAME-STEPS-steps.yaml beside the spec]"
)
@store_options
def promote(name: str | None, steps: int, condition: str | None, output: Path | None, place: PlaceOptions) -> None:
    """Write the spec of one longer run of the recommended condition.

    The spec has the settings of that condition, a new name, and neither matrix, repeats nor search. Without a proven
    recommendation, name a condition.

    Examples:
      campaign promote sweep --steps 20000 --condition zero_stage-3 --output long.yaml
    """
    with needs_the_extra(), progress_shown():
        from dscampaign.db import queries
        from dscampaign.orchestrator.api.results import measured
        from dscampaign.orchestrator.campaign.promotion import promote as make
        from dscampaign.orchestrator.campaign.selection import open_campaign
        from dscampaign.orchestrator.report.compare.conditions import condition_named

        opened, campaign = open_campaign(place, name)
        results = measured(opened, campaign)
        answers = [workload.answer for workload in results.workloads]
        if condition:
            chosen = condition_named(condition, results.conditions, campaign.name)
        elif len(answers) == 1 and answers[0].chosen and answers[0].proven:
            chosen = answers[0].chosen
        else:
            several = f"{campaign.name} has {len(answers)} workloads"
            reason = clean(answers[0].sentence) if len(answers) == 1 else several
            hint = f"name a condition with --condition: {some([c.name for c in results.conditions], 8)}"
            raise UserError(f"no condition is recommended: {reason}", hint)
        with opened.read() as conn:
            row = queries.run_by_name(conn, campaign.id, chosen.runs[0].name)
        assert row is not None
        beside = Path(campaign.provenance.get("spec", "")).parent
        out = (output or beside / f"{campaign.name}-{steps}-steps.yaml").absolute()
        check_folder_of(out)
        if out.exists():
            raise UserError(f"{out} already exists", "name another file: --output FILE")
        promotion = make(campaign, chosen.name, row, steps, out)
        with whole_file(out) as stream:
            stream.write(promotion.text)
    shown, length = os.path.relpath(out), count(promotion.run.target_step or 0, "step")
    lines = [f"{shown}: one run of {chosen.name}, {length}, as the campaign {promotion.name}"]
    lines += [f"  {text}" for text in promotion.fixed]
    echo_page("\n".join([*lines, *[""] * bool(promotion.notes), *promotion.notes]))
    echo_next(typed("plan", shown))


@verb
@click.argument("words", metavar="[NAME] RUN", nargs=-1, shell_complete=names)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=1), help="Step of the checkpoint.  [default: the newest]")
@click.option("--best", is_flag=True, help="Take the checkpoint with the lowest held-out loss.")
@click.option("--dtype", type=click.Choice(("bf16", "fp16", "fp32")), help="Number format.  [default: the training's]")
@store_options
def weights(
    words: Sequence[str], out: Path, step: int | None, best: bool, dtype: str | None, place: PlaceOptions
) -> None:
    """Write a run's weights in the format of Transformers.

    OUT becomes a folder for `from_pretrained`. Needs the training stack on this machine, but no GPU.

    Examples:
      campaign weights sweep zero_stage-3 ./best --best
    """
    from dscampaign.orchestrator.campaign.selection import find_run
    from dscampaign.orchestrator.campaign.weights import plan_weights, require_free, write_weights

    if best and step is not None:
        raise UserError("--best chooses the step", "leave --step or --best out")
    out = out.absolute()
    require_free(out)
    location = locate(place, words)
    campaign, run = find_run(opened := location.open(), location.words)
    plan = plan_weights(opened, campaign, run, step=step, best=best, dtype=dtype)
    echo_err(f"reading the checkpoint of step {plan.source.step:,}, {size(plan.source.manifest.size_bytes)}")
    done, loss = write_weights(plan, out), plan.source.manifest.eval_loss
    echo_page(
        f"{out}: {done.model}, {done.parameters:,} parameters in {plan.dtype}, {size(done.size_bytes)}\n"
        f"  weights     run {run.name} of {campaign.name}, step {plan.source.step:,}"
        f"{'' if loss is None else f', held-out loss {loss:.4f}'}\n"
        f"  tokenizer   {done.tokenizer}\n"
        f'  load it     AutoModelForCausalLM.from_pretrained("{out}", dtype="auto")'
    )
