"""`campaign diagnose`: why a job ended that nobody here started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, UserError
from dscampaign.orchestrator.formatting import clean, count, source, words

from .options import verb
from .output import echo_page, page_for
from .output_format import TABLE, echo_rows, format_options
from .pages.text import Page, Style

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.diagnosis import Explained

UNKNOWN: Final = "Add evidence: `--job ID`, the logs of the other ranks, standard error."


@verb
@click.argument("paths", metavar="[PATH...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--job", "job_id", metavar="ID", help="Also ask Slurm about this job; without PATH, read its logs.")
@format_options
def diagnose(paths: Sequence[Path], job_id: str | None, form: str) -> int:
    """Diagnose why a job ended, whoever started it.

    PATH is a log (of Slurm, a launcher or a rank), a folder of logs, or the folder of an attempt. All are taken to be
    of a job. Needs no spec and no store, and writes nothing. Of a large log the beginning and the end are read.

    Prints the failure class, the line that proves it, and what to do next. Exit code 1: nothing shows why it ended.

    Examples:
      campaign diagnose slurm-4711.out
      campaign diagnose logs/rank*.log --job 4711
      campaign diagnose --job 4711 -o json | jq -r .class
    """
    from dscampaign.orchestrator.campaign.diagnosis import explain
    from dscampaign.orchestrator.campaign.foreign_logs import files_of
    from dscampaign.orchestrator.executors.one_job import find_job

    job = find_job(job_id) if job_id else None
    if not paths and job is None:
        raise UserError("nothing to diagnose", "`campaign diagnose LOG...`, `campaign diagnose --job ID`, or both")
    if not paths and job and not job.view.terminal:
        raise UserError(f"job {job_id} has not ended: {job.view.state}", "to read its logs so far, name them")
    found = explain(paths or (files_of(job) if job else []), job)
    if form == TABLE:
        echo_page("\n".join(_lines(found, page_for(sys.stdout))))
    else:
        echo_rows(form, _document(found), lambda document: [document])
    return EXIT_OK if found.kind else EXIT_FAILED


def _document(found: Explained) -> dict[str, Any]:
    job = found.job
    return {
        "class": found.kind and str(found.kind),
        "sure": str(found.sure),
        "reason": found.reason,
        "rule": found.rule,
        "proof": found.proof and vars(found.proof),
        "rank": found.rank,
        "node": found.node,
        "next": _next(found),
        "job": job and {name: getattr(job.view, name) for name in ("job_id", "state", "exit_code", "reason", "nodes")},
        "files": [vars(file) for file in found.files],
    }


def _next(found: Explained) -> str:
    if found.kind is None:
        return UNKNOWN
    return found.kind.policy.by_hand


def _lines(found: Explained, page: Page) -> Iterator[str]:
    title = words(str(found.kind)) if found.kind else "unknown"
    reason = clean(found.reason) or ("" if found.kind else "no log shows the cause")
    yield page.paint(f"{title}: {reason}" if reason else title, Style.BOLD)
    if proof := found.proof:
        where = source(proof.file, proof.line or 0)
        where += f", line {proof.line_from_end:,} from its end" if proof.line_from_end else ""
        yield page.paint(f"proof: {where}{f', rule {found.rule}' if found.rule else ''} ({found.sure})", Style.DIM)
        yield page.paint(f"       {clean(proof.text.splitlines()[0] if proof.text else '')}", Style.DIM)
    origin = [f"rank {found.rank}"] if found.rank is not None else []
    origin += [f"node {clean(found.node)}"] if found.node else []
    if origin:
        yield f"from:  {', '.join(origin)}"
    if found.job:
        view = found.job.view
        yield f"job:   {view.job_id} {view.state} {view.exit_code} {clean(view.nodes)}".rstrip()
    yield f"next:  {_next(found)}"
    if partly := sum(file.read_bytes < file.size_bytes for file in found.files):
        yield page.paint(f"Read only the beginning and the end of {count(partly, 'file')}.", Style.DIM)
