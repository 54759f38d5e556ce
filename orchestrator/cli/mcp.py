"""The command mcp: campaigns as tools of an agent, by the Model Context Protocol."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dscampaign import __version__
from dscampaign.db.errors import StoreError
from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import UserError, exit_code_of, needs_the_extra
from dscampaign.orchestrator.spec.objective import Objective

from .console import json_text, store_options, verb

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.tools import Tool as ServerTool
    from mcp.types import ToolAnnotations

Tool = Callable[..., dict[str, Any]]


@verb
@click.option("--allow-writes", is_flag=True, help="Also offer submit, cancel and retry.")
@store_options
def mcp(allow_writes: bool, place: PlaceOptions) -> None:
    """Serve campaigns as tools to an agent, on standard input and output.

    Offers plan, status, explain, compare and recommend by the Model Context Protocol. Each returns the document of its
    command. With --allow-writes, submit and retry leave further retries to a job, or on this host to a process.

    Examples:
      campaign mcp --store postgresql://me@db/campaigns --allow-writes
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the server would wait for the end of its input
    with needs_the_extra():
        server_of(place, allow_writes=allow_writes).run("stdio")


def server_of(place: PlaceOptions, *, allow_writes: bool) -> MCPServer:
    """Return the server of the campaigns at a place."""
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    reading, writing = _tools(place)
    tools = [_strict(tool, ToolAnnotations(read_only_hint=True)) for tool in reading]
    if allow_writes:
        tools += [_strict(tool, ToolAnnotations(read_only_hint=False, destructive_hint=True)) for tool in writing]
    return MCPServer("dscampaign", version=__version__, log_level="WARNING", tools=tools)


def _strict(tool: Tool, annotations: ToolAnnotations) -> ServerTool:
    """Return a tool that answers with JSON, and with an error as the command prints it.

    It refuses unknown arguments: `retry(run=...)` without its runs would retry all.
    """
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool as ServerTool

    @wraps(tool)
    def answer(**arguments: Any) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(json_text(tool(**arguments)))
        except (UserError, StoreError, OSError) as error:
            hint = f"\nhint: {text}" if (text := getattr(error, "hint", "")) else ""
            raise ToolError(f"{error}{hint}\nexit code {exit_code_of(error)}") from error
        return document

    strict = ServerTool.from_function(answer, annotations=annotations)
    arguments = strict.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    strict.parameters = arguments.model_json_schema()
    return strict


def _tools(place: PlaceOptions) -> tuple[list[Tool], list[Tool]]:
    from dscampaign.orchestrator.api.campaign import Campaign
    from dscampaign.orchestrator.campaign.documents import RunDetails, campaign_document, run_document, status_document
    from dscampaign.orchestrator.campaign.selection import open_selection
    from dscampaign.orchestrator.pages.plan import plan_document

    where = place._asdict()

    def having(campaign: str | None, *runs: str) -> Campaign:
        return Campaign.open(campaign or open_selection(place, runs)[1].name, **where)

    def plan(spec: Path, sets: Sequence[str] = ()) -> dict[str, Any]:
        """Show the effect of submitting a spec, a YAML file; `sets` override fields, such as train.steps=10."""
        return plan_document(Campaign.from_yaml(spec, sets=sets, **where).plan())

    def status(campaign: str | None = None, runs: Sequence[str] = ()) -> dict[str, Any]:
        """Show the state, step, loss and speed of runs; `runs` are names or patterns, such as zero_stage-3*."""
        return status_document(*having(campaign, *runs).selected(*runs))

    def explain(campaign: str | None = None, run: str | None = None) -> dict[str, Any]:
        """Explain a run: its configuration, and why each attempt ended, with the proof; without a run the campaign."""
        facts = having(campaign, *([run] if run else [])).explain(run or None)
        return run_document(facts) if isinstance(facts, RunDetails) else campaign_document(facts)

    def compare(a: str, b: str, campaign: str | None = None) -> dict[str, Any]:
        """Compare two conditions, runs or campaigns: figures with intervals over repeats, and a verdict."""
        with needs_the_extra():
            from dscampaign.orchestrator.report.compare.difference import compare_operands
            from dscampaign.orchestrator.report.page.data import comparison_document

            location = locate(place, [campaign, a, b])
            return comparison_document(compare_operands(location.open(), location.words))

    def recommend(campaign: str | None = None, by: Objective | None = None) -> dict[str, Any]:
        """Recommend a configuration: a sentence, and all conditions, best first."""
        with needs_the_extra():
            from dscampaign.orchestrator.report.page.data import recommendation_document

            return recommendation_document(Campaign.open(campaign, **where).recommend(by=by))

    def submit(spec: Path, sets: Sequence[str] = (), yes: bool = False) -> dict[str, Any]:
        """Submit the runs of a spec, a YAML file; `yes` if the user agreed to a large submission."""
        campaign = Campaign.from_yaml(spec, sets=sets, **where)
        campaign.submit(yes=yes, detach=True)
        return status_document(*campaign.selected())

    def cancel(campaign: str, runs: Sequence[str] = (), everything: bool = False) -> dict[str, Any]:
        """Cancel runs, by names or patterns, or `everything`, and their jobs."""
        opened = Campaign.open(campaign, **where)
        opened.cancel(*runs, everything=everything)
        return status_document(*opened.selected())

    def retry(campaign: str, runs: Sequence[str] = (), yes: bool = False) -> dict[str, Any]:
        """Retry runs, by names or patterns, or all that failed or are held; `yes` if the user agreed to many."""
        opened = Campaign.open(campaign, **where)
        opened.retry(*runs, yes=yes, detach=True)
        return status_document(*opened.selected())

    return [plan, status, explain, compare, recommend], [submit, cancel, retry]
