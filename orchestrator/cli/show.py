"""Commands that only read: status, top, serve, explain, logs, doctor, diagnose."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.doctor.check import Check, Severity
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, UserError, needs_the_extra
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import clean, count, some, source, words
from dscampaign.orchestrator.pages.text import Cell, Page, Style, table

from . import console
from .campaigns import echo_overview
from .spec import read_submission, set_option

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.diagnosis import Explained
    from dscampaign.orchestrator.campaign.selection import Selection


@console.verb
@console.runs_argument
@click.option("--watch", "-w", is_flag=True, help="Refresh every two seconds until every run is settled.")
@console.selection_options
@click.option("--all", "everything", is_flag=True, help="Show every run.")
@console.store_options
@console.json_option
def status(
    words: Sequence[str], watch: bool, chosen: Selection, everything: bool, place: PlaceOptions, as_json: bool
) -> int:
    """Show the status of a campaign, or of all campaigns.

    Loss and speed are of the last step that the reconciler has read, or final. If runs do not fit on the screen, or all
    have ended, shows conditions, the worst first.

    Examples:
      campaign status sweep --watch
      campaign status sweep --json | jq '.runs[] | select(.state == "failed") | .name'
    """
    from dscampaign.orchestrator.campaign.documents import status_document
    from dscampaign.orchestrator.campaign.selection import campaigns_of, select
    from dscampaign.orchestrator.campaign.status import read_status, with_final_figures, with_queue, with_titles
    from dscampaign.orchestrator.pages.status import status_page

    location = locate(place, words)
    opened = location.open()
    if not (words or chosen or watch) and len(campaigns_of(opened, None)) > 1:
        echo_overview(opened, as_json)
        return EXIT_OK
    campaign, chosen = select(opened, location.words, chosen)
    if watch:
        from .watch import watch_status

        watch_status(opened, campaign, chosen)
    campaign_status, page = with_queue(opened, read_status(opened, campaign)), console.page_for(sys.stdout)
    shown = campaign_status.of(chosen)
    if chosen and not shown.runs:
        console.echo_err(chosen.none(campaign.name))
    if as_json:
        console.echo_json(status_document(opened, campaign, chosen))
    else:
        height = None if everything or chosen else console.screen_height(sys.stdout)
        shown = with_final_figures(opened, with_titles(opened, shown))
        console.echo_page(status_page(shown, page, height, campaign_status if chosen else None))
    return EXIT_FAILED if watch and not campaign_status.all_completed else EXIT_OK


@console.verb
@console.campaign_argument
@console.store_options
def top(name: str | None, place: PlaceOptions) -> None:
    """Watch campaigns and their runs on the whole terminal.

    Shows curves of the loss, why runs wait, and the newest events. Only reads.

    Examples:
      campaign top sweep
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        follow = typed("status", *([name] if name else []), "--watch")
        raise UserError("this needs a terminal", f"`{follow}` writes lines")
    location = locate(place, [name])
    with needs_the_extra():
        from dscampaign.orchestrator.live.top import view_of

        view_of(location.open(), location.name).run()


@console.verb
@console.campaign_argument
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: a free one]")
@click.option("--export", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Write the page as files.")
@console.store_options
def serve(name: str | None, port: int, folder: Path | None, place: PlaceOptions) -> None:
    """Serve a live page of the campaigns, until Ctrl-C.

    Shows runs, curves, explanations, logs and GPUs, and changes nothing. Only you can open the link, on this machine;
    from a laptop, forward the port by ssh.

    Examples:
      campaign serve sweep --export ~/public_html/sweep
    """
    import getpass
    import socket

    with needs_the_extra():
        from dscampaign.orchestrator.campaign.selection import find
        from dscampaign.orchestrator.live.model import LiveStore
        from dscampaign.orchestrator.live.server import serve as serve_store
        from dscampaign.orchestrator.live.static import export

    location = locate(place, [name])
    store = location.open()
    if location.name:
        find(store, location.name)
    if folder:
        files = export(LiveStore(store, math.inf), location.name, folder)
        console.echo_err(f"{files[0]}, {count(len(files), 'page')}")
        return

    def tell(link: str, port: int) -> None:
        console.echo(link)
        forward = f"ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"
        console.echo_err(f"From a laptop: `{forward}`, then open the link there. Ctrl-C ends it.")

    with suppress(KeyboardInterrupt):
        serve_store(store, port, location.name, tell)


@console.verb
@console.runs_argument
@click.option("--config", "settings", is_flag=True, help="Show the settings with their sources.")
@console.store_options
@console.json_option
def explain(words: Sequence[str], settings: bool, place: PlaceOptions, as_json: bool) -> None:
    """Explain the state of a run, or of a campaign.

    Shows the configuration of a run, and of each attempt the end, its proof, and the next action.

    Examples:
      campaign explain sweep zero_stage-3
    """
    from dscampaign.orchestrator.campaign import documents
    from dscampaign.orchestrator.campaign.selection import find_run, open_selection
    from dscampaign.orchestrator.pages.describe import campaign_page, run_page

    if settings:
        shown = locate(place, words).settings.shown
        document = {"settings": [{"name": s.name, "value": s.value, "source": s.source} for s in shown]}
        rows = [(Cell(s.name, Style.BOLD), s.value, Cell(s.source, Style.DIM)) for s in shown]
        header = ("setting", "value", "from")
        console.echo_either(as_json, lambda: document, lambda page: "\n".join(table(page, header, rows)))
        return
    opened, campaign, chosen = open_selection(place, words)
    if chosen:
        run = documents.run_details(opened, *find_run(opened, (campaign.name, *chosen.names)))
        console.echo_either(as_json, lambda: documents.run_document(run), lambda page: run_page(run, page))
    else:
        facts = documents.campaign_details(opened, campaign)
        console.echo_either(
            as_json, lambda: documents.campaign_document(facts), lambda page: campaign_page(facts, page)
        )
    console.echo_age(opened, campaign)


@console.verb
@console.runs_argument
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank whose output to show.")
@click.option("--launcher", is_flag=True, help="Show the launcher's output on node --rank instead.")
@click.option("--attempt", type=click.IntRange(min=1), help="Attempt to show.  [default: the newest]")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="LINES", help="Show only the last LINES lines.")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the attempt ends; wait for a queued attempt.")
@console.store_options
def logs(
    words: Sequence[str],
    rank: int,
    launcher: bool,
    attempt: int | None,
    lines: int | None,
    follow: bool,
    place: PlaceOptions,
) -> None:
    """Show the output of a rank of a run.

    Until the rank prints something, shows the output of the launcher or of the batch job.

    Examples:
      campaign logs sweep zero_stage-2 --rank 3 --attempt 1 -n 50
    """
    from dscampaign.orchestrator.campaign.logs import Wanted, await_attempt, follow_log, newest_log, print_log
    from dscampaign.orchestrator.campaign.selection import attempt_of_job, find_run

    location = locate(place, words)
    campaign, run = find_run(opened := location.open(), location.words)
    attempt = attempt or (attempt_of_job(opened, campaign, run, location.words[-1]) if location.words else None)
    if follow and attempt is None:
        await_attempt(opened, campaign, run, console.echo_err, time.sleep)
    wanted = Wanted.of(opened, campaign, run, rank=rank, launcher=launcher, generation=attempt)
    stream = console.TerminalLog(sys.stdout) if sys.stdout.isatty() else sys.stdout.buffer
    if follow:
        follow_log(wanted, lines, stream)
    else:
        path = newest_log(wanted)
        if not launcher and f"_rank{rank}." not in path.name:
            printed = "printed nothing" if wanted.ended else "has printed nothing yet"
            console.echo_err(f"rank {rank} {printed}; showing {path}")
        print_log(path, lines, stream)


@console.verb
@click.argument("spec", metavar="[SPEC]", type=click.Path(path_type=Path), required=False)
@click.option("--on-node", is_flag=True, help="Also check a node, with a short job.")
@click.option("--wait", default=10.0, show_default=True, metavar="MINUTES", help="Longest wait of this job for a node.")
@click.option("--notify", is_flag=True, help="Send a test message as the spec's `notify` asks.")
@set_option
@console.store_options
@console.json_option
def doctor(
    spec: Path | None, on_node: bool, wait: float, notify: bool, sets: Sequence[str], place: PlaceOptions, as_json: bool
) -> int:
    """Check whether machine, cluster and store are ready.

    With --on-node, a job checks driver, GPUs and links, memory, the disk at nvme_path, torch, DeepSpeed and its
    operators, an all-reduce, and the database.

    Examples:
      campaign doctor campaign.yaml --on-node
    """
    from dscampaign.orchestrator.doctor.check import exit_code
    from dscampaign.orchestrator.doctor.requirements import requirements_of
    from dscampaign.orchestrator.doctor.run import doctor as look
    from dscampaign.orchestrator.doctor.run import notify_checks

    if (on_node or notify) and spec is None:
        raise UserError("--on-node and --notify need a spec", f"`{typed('doctor', SPEC, '--on-node')}`")
    submission, location = read_submission(spec, sets, place) if spec else (None, locate(place))
    if notify and submission and submission.spec.notify is None:
        raise UserError("--notify needs a spec with `notify`", "see docs/spec.md")
    requirements = requirements_of(submission.runs) if submission else []
    checks = look(location, requirements, on_node=on_node, wait_s=60 * wait, tell=console.echo_err)
    checks += notify_checks(submission.spec.name, submission.rules["notify"]) if notify and submission else []
    console.echo_either(as_json, lambda: doctor_document(checks), lambda page: doctor_page(checks, page))
    return exit_code(checks)


@console.verb
@click.argument("paths", metavar="[PATH...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--job", "job_id", metavar="ID", help="Also ask Slurm about this job; without PATH, read its logs.")
@console.json_option
def diagnose(paths: Sequence[Path], job_id: str | None, as_json: bool) -> int:
    """Diagnose why a job ended, whoever started it.

    Each PATH is a log, a folder of logs, or the folder of an attempt. Prints the failure class, its proof, and the next
    action. Exit code 1: nothing shows the cause.

    Examples:
      campaign diagnose slurm-4711.out
      campaign diagnose logs/rank*.log --job 4711
    """
    from dscampaign.orchestrator.campaign.diagnosis import explain, files_of
    from dscampaign.orchestrator.executors.one_job import find_job

    job = find_job(job_id) if job_id else None
    if not paths and job is None:
        raise UserError("nothing to diagnose", "`campaign diagnose LOG...`, `campaign diagnose --job ID`, or both")
    if not paths and job and not job.view.terminal:
        raise UserError(f"job {job_id} has not ended: {job.view.state}", "to read its logs so far, name them")
    explained = explain(paths or (files_of(job) if job else []), job)
    console.echo_either(as_json, lambda: _document(explained), lambda page: "\n".join(_lines(explained, page)))
    return EXIT_OK if explained.kind else EXIT_FAILED


def _document(explained: Explained) -> dict[str, Any]:
    job = explained.job
    return {
        "class": explained.kind and str(explained.kind),
        "sure": str(explained.sure),
        **{name: getattr(explained, name) for name in ("reason", "rule", "rank", "node")},
        "proof": explained.proof and vars(explained.proof),
        "next": _next(explained),
        "job": job and {name: getattr(job.view, name) for name in ("job_id", "state", "exit_code", "reason", "nodes")},
        "files": [vars(file) for file in explained.files],
    }


def _next(explained: Explained) -> str:
    more = "Add evidence: `--job ID`, the logs of the other ranks, standard error."
    return explained.kind.policy.by_hand if explained.kind else more


def _lines(explained: Explained, page: Page) -> Iterator[str]:
    title = words(str(explained.kind)) if explained.kind else "unknown"
    reason = clean(explained.reason) or ("" if explained.kind else "no log shows the cause")
    yield page.paint(f"{title}: {reason}" if reason else title, Style.BOLD)
    if proof := explained.proof:
        rule = f", rule {explained.rule}" if explained.rule else ""
        yield page.paint(f"proof: {source(proof.file, proof.line or 0)}{rule} ({explained.sure})", Style.DIM)
        yield page.paint(f"       {clean(proof.text.splitlines()[0] if proof.text else '')}", Style.DIM)
    origin = [f"rank {explained.rank}"] if explained.rank is not None else []
    if origin := origin + ([f"node {clean(explained.node)}"] if explained.node else []):
        yield f"from:  {', '.join(origin)}"
    if view := explained.job and explained.job.view:
        yield f"job:   {view.job_id} {view.state} {view.exit_code} {clean(view.nodes)}".rstrip()
    yield f"next:  {_next(explained)}"
    if partly := sum(file.read_bytes < file.size_bytes for file in explained.files):
        yield page.paint(f"Read only the beginning and the end of {count(partly, 'file')}.", Style.DIM)
    if explained.skipped:
        yield page.paint(f"Skipped, not regular files: {clean(some(explained.skipped, 3))}.", Style.DIM)


_STYLES: Final = {Severity.OK: Style.GREEN, Severity.WARNING: Style.YELLOW, Severity.PROBLEM: Style.RED}


def doctor_page(checks: Sequence[Check], page: Page) -> str:
    """All checks, and how many there are: `Doctor: 1 problem, 2 warnings, 18 ok`."""
    lines: list[str] = []
    for of_place in alike(checks, lambda check: check.where):
        rows = [(Cell(c.verdict.value.ljust(7), _STYLES[c.verdict]), c.id, clean(c.seen)) for c in of_place]
        _, *shown = table(Page(page.colour), ("verdict", "check", "seen"), rows)  # nothing is cut: it is all to be read
        lines.append(page.paint(of_place[0].where, Style.BOLD))
        for check, line in zip(of_place, shown, strict=True):
            advice = f"{' ' * 9}{page.paint('next:', Style.CYAN)} {clean(check.next)}"
            lines += [line, *([advice] if check.next else [])]
        lines.append("")
    numbers = Counter(check.verdict for check in checks)
    worse = (verdict for verdict in (Severity.PROBLEM, Severity.WARNING) if numbers[verdict])
    summary = ", ".join([*(count(numbers[verdict], verdict) for verdict in worse), f"{numbers[Severity.OK]} ok"])
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
