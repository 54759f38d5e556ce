"""The command `campaign`; its subcommands are in the modules beside this.

Nothing here imports pydantic, SQLAlchemy or submitit before a subcommand needs it: `campaign --help` must be instant.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence

import click

from dscampaign import __version__
from dscampaign.db.errors import StoreError
from dscampaign.orchestrator.commands import running
from dscampaign.orchestrator.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, SpecError, UserError, exit_code_of

from .campaigns import db, list_campaigns, rm, share
from .campaigns import gc as collect
from .console import COMPLETE_VARIABLE, Verbs, completion, echo, echo_err, echo_error
from .export import export, promote, weights
from .mcp import mcp
from .report import compare, recommend, report
from .runs import cancel, reconcile, retry, submit
from .show import diagnose, doctor, explain, logs, serve, status, top
from .spec import init, plan, render, schema, validate


@click.group(cls=Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="campaign", message="%(prog)s %(version)s")
@click.pass_context
def campaign(ctx: click.Context) -> None:
    """Run campaigns of DeepSpeed training runs on a Slurm cluster.

    A typical session:
      campaign init                     write a spec from a template
      campaign plan campaign.yaml       show what would be submitted
      campaign submit campaign.yaml     submit it
      campaign reconcile --watch        resubmit and resume until all is settled
      campaign status                   show the status of every run
      campaign report                   write tables and figures

    A RUN is a name, a pattern, the title of a condition, the beginning of a name or title, or a job id. Leave NAME out
    if no other campaign has a run that matches.

    `campaign completion --help` shows how to complete names of campaigns and runs in your shell.
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


_RUNS = (init, schema, validate, plan, render, submit, reconcile, cancel, retry, status, top, serve, explain, logs)
_RESULTS = (export, report, recommend, compare, promote, weights)
for _verb in (*_RUNS, *_RESULTS, list_campaigns, share, rm, collect, doctor, diagnose, mcp, db, completion):
    campaign.add_command(_verb)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    `argv` are the arguments after `campaign`, by default those of this process; `--debug` anywhere shows tracebacks.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if debug := "--debug" in words:
        words.remove("--debug")
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")  # for characters that its encoding lacks
    gc.set_threshold(500_000, 50)  # imports and campaigns make many objects that stay: looking at them costs time
    try:
        with running():
            return int(campaign.main(words, prog_name="campaign", standalone_mode=False) or EXIT_OK)
    except Exception as error:
        if COMPLETE_VARIABLE in os.environ:
            return EXIT_OK  # a message would land in the line that the user types
        if debug:
            raise
        if (code := _explained(error)) is None:
            traceback.print_exc()
            return EXIT_BUG
        return code


def _explained(error: Exception) -> int | None:
    """Print the error and its hint; return the exit code, None for a bug."""
    match error:
        case click.Abort():
            return EXIT_INTERRUPTED
        case click.ClickException():
            verb = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "campaign"
            message = error.format_message()
            echo_error(message[:1].lower() + message[1:].removesuffix("."), f"`{verb} --help`")
            return error.exit_code
        case SpecError():
            echo_err(error.message)
        case UserError() | StoreError():
            echo_error(error.message, error.hint)
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            echo_error(f"{place}{error.strerror or error}", None)
        case _:
            return None
    return exit_code_of(error)
