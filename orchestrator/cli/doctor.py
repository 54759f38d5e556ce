"""Commands that look for causes: doctor, diagnose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.doctor.check import Check, Severity
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, UserError
from dscampaign.orchestrator.formatting import clean, count, source, words

from .options import json_option, store_options, verb
from .output import echo_either, echo_err
from .pages.text import Cell, Page, Style, table
from .spec import read_submission, set_option

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.diagnosis import Explained


@verb
@click.argument("spec", metavar="[SPEC]", type=click.Path(path_type=Path), required=False)
@click.option("--on-node", is_flag=True, help="Also check a node, with a short job.")
@click.option(
    "--wait",
    "wait_min",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    metavar="MINUTES",
    help="Longest time that this job may wait in the queue.",
)
@set_option
@store_options
@json_option
def doctor(
    spec: Path | None, on_node: bool, wait_min: float, sets: Sequence[str], place: PlaceOptions, as_json: bool
) -> int:
    """Check whether machine, cluster and store are ready.

    With SPEC, also checks that the cluster has what the spec asks for. With --on-node, a job on the spec's partition,
    with the GPUs of a node, checks that node: driver, GPUs and the links between them, memory, the disk at nvme_path,
    torch, DeepSpeed and its operators, an all-reduce by the launcher, clocks, and whether it reaches the
    database. With `executor: local`, this machine is that node.

    Each check is ok, a note, a warning or a problem, with what to do next. Exit code 1: there is a problem. 3: the only
    problem is that Slurm or the store did not respond.

    Examples:
      campaign doctor
      campaign doctor campaign.yaml --on-node
      campaign doctor campaign.yaml --json | jq '.checks[] | select(.verdict == "problem")'
    """
    from dscampaign.orchestrator.doctor.check import exit_code
    from dscampaign.orchestrator.doctor.requirements import requirements_of
    from dscampaign.orchestrator.doctor.run import doctor as look

    from .watch import terminated_as_interrupted

    if on_node and spec is None:
        raise UserError("--on-node needs a spec", f"`{typed('doctor', SPEC, '--on-node')}`")
    submission, where = read_submission(spec, sets, place) if spec else (None, locate(place))
    requirements = requirements_of(submission.runs) if submission else []
    with terminated_as_interrupted():
        checks = look(where, requirements, on_node=on_node, wait_s=60 * wait_min, tell=echo_err)
    echo_either(as_json, lambda: doctor_document(checks), lambda page: doctor_page(checks, page))
    return exit_code(checks)


UNKNOWN: Final = "Add evidence: `--job ID`, the logs of the other ranks, standard error."


@verb
@click.argument("paths", metavar="[PATH...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--job", "job_id", metavar="ID", help="Also ask Slurm about this job; without PATH, read its logs.")
@json_option
def diagnose(paths: Sequence[Path], job_id: str | None, as_json: bool) -> int:
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
    echo_either(as_json, lambda: _document(found), lambda page: "\n".join(_lines(found, page)))
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


_STYLES: Final = {
    Severity.OK: Style.GREEN,
    Severity.NOTE: Style.CYAN,
    Severity.WARNING: Style.YELLOW,
    Severity.PROBLEM: Style.RED,
}
_INDENT: Final = " " * 9


def doctor_page(checks: Sequence[Check], page: Page) -> str:
    """All checks, and how many there are: `Doctor: 1 problem, 2 warnings, 1 note, 18 ok`."""
    lines: list[str] = []
    for where in dict.fromkeys(check.where for check in checks):
        lines += [page.paint(where, Style.BOLD), *_rows([c for c in checks if c.where == where], page), ""]
    numbers = Counter(check.verdict for check in checks)
    parts = [count(numbers[verdict], verdict) for verdict in (Severity.PROBLEM, Severity.WARNING, Severity.NOTE)]
    summary = ", ".join([*(part for part in parts if not part.startswith("0 ")), f"{numbers[Severity.OK]} ok"])
    return "\n".join([*lines, f"{page.paint('Doctor:', Style.BOLD)} {summary}"])


def doctor_document(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as one document for `--json`."""
    numbers = Counter(check.verdict for check in checks)
    return {
        "counts": {verdict.value: numbers[verdict] for verdict in Severity},
        "checks": [
            {"id": c.id, "where": c.where, "verdict": c.verdict.value, "seen": c.seen, "next": c.next or None}
            for c in checks
        ],
    }


def _rows(checks: Sequence[Check], page: Page) -> Iterator[str]:
    rows: list[list[Cell | str]] = [
        [Cell(c.verdict.value.ljust(7), _STYLES[c.verdict]), c.id, clean(c.seen)] for c in checks
    ]
    _, *lines = table(Page(page.colour), ("verdict", "check", "seen"), rows)  # nothing is cut: it is all to be read
    for check, line in zip(checks, lines, strict=True):
        yield line
        if check.next:
            yield f"{_INDENT}{page.paint('next:', Style.CYAN)} {clean(check.next)}"
