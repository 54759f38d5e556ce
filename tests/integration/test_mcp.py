"""Campaigns as tools of an agent, seen by the protocol's own client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from dscampaign.db import queries
from dscampaign.db.states import RunState
from dscampaign.orchestrator.api.campaign import Campaign
from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.cli.mcp import server_of
from dscampaign.scripts.documents import documents
from dscampaign.tests.support.cli_world import make_world
from dscampaign.tests.support.waiting import wait_until

READING = {"plan", "status", "explain", "compare", "recommend"}
WRITING = {"submit", "cancel", "retry"}


def client_of(server: Any) -> Any:
    """Return a client of the protocol, which takes a second to import: only the process that needs it does."""
    from mcp import Client

    return Client(server)


def test_an_agent_reads_and_changes_nothing_unless_it_may(tmp_path: Path) -> None:
    from mcp import StdioServerParameters

    make_world(tmp_path).store.close()
    place = ["-m", "dscampaign.orchestrator.cli", "mcp", "--dir", str(tmp_path / "campaign")]

    async def read() -> list[Any]:
        async with client_of(StdioServerParameters(command=sys.executable, args=place, cwd=tmp_path)) as client:
            calls: list[tuple[str, dict[str, Any]]] = [("status", {"runs": ["b*"]})]
            calls += [("explain", {"run": run}) for run in ("bad", "smoll")]
            return [
                (await client.list_tools()).tools,
                *[await client.call_tool(name, arguments) for name, arguments in calls],
                await client.call_tool("cancel", {"campaign": "sweep", "everything": True}),
            ]

    tools, status, explained, mistaken, refused = asyncio.run(read())
    assert {tool.name: tool.annotations.read_only_hint for tool in tools} == dict.fromkeys(READING, True)
    assert all(tool.description for tool in tools)
    validate(status.structured_content, documents()["status"].schema())
    assert [run["name"] for run in status.structured_content["runs"]] == ["bad"]
    validate(explained.structured_content, documents()["run"].schema())
    assert json.loads(explained.content[0].text) == explained.structured_content
    assert (mistaken.is_error, "hint: " in mistaken.content[0].text) == (True, True)
    assert mistaken.content[0].text.endswith("exit code 2")
    assert refused.is_error
    assert Campaign.open("sweep", dir=str(tmp_path / "campaign")).status("new").counts.states == {RunState.PENDING: 1}


def test_a_run_needs_no_campaign_as_in_the_commands(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    with world.store.write() as conn:
        values: dict[str, Any] = {"spec": "name: other\n", "spec_hash": "h", "executor": "slurm"}
        queries.insert_campaign(conn, name="other", dir=str(world.dir), **values)
    world.store.close()

    async def read() -> list[Any]:
        calls: dict[str, dict[str, Any]] = {"status": {"runs": ["bad"]}, "explain": {"run": "bad"}}
        calls["compare"] = {"a": "done", "b": "small"}
        async with client_of(server_of(PlaceOptions(str(world.dir)), allow_writes=False)) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls.items()]

    *others, compared = asyncio.run(read())
    assert [answer.is_error for answer in others] == [False, False]
    assert "done and small have runs in common" in compared.content[0].text


def test_an_agent_that_may_write_cancels(tmp_path: Path) -> None:
    world = make_world(tmp_path)

    async def write() -> Any:
        async with client_of(server_of(PlaceOptions(str(world.dir)), allow_writes=True)) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            refused = await client.call_tool("cancel", {"campaign": "sweep"})
            misnamed = await client.call_tool("retry", {"campaign": "sweep", "run": "bad"})
            cancelled = await client.call_tool("cancel", {"campaign": "sweep", "runs": ["new"]})
            return tools, refused, misnamed, cancelled

    tools, refused, misnamed, cancelled = asyncio.run(write())
    assert tools == READING | WRITING
    assert "which runs?" in refused.content[0].text
    assert (misnamed.is_error, "run\n  Extra inputs" in misnamed.content[0].text) == (True, True)
    states = {run["name"]: run["state"] for run in cancelled.structured_content["runs"]}
    assert states["new"] == "cancelled"
    world.store.close()


@pytest.mark.nightly
def test_what_an_agent_submits_goes_on_by_itself(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(
        "import pathlib, sys\nfirst = not pathlib.Path('seen').exists()\n"
        "pathlib.Path('seen').touch()\nsys.exit('no luck' if first else 0)\n"
    )
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "name: two\nexecutor: local\nlauncher: python\ncommand: once.py\nretry: {backoff_s: 0}\ntelemetry_s: 0\n"
    )

    async def submit() -> Any:
        async with client_of(server_of(PlaceOptions(str(tmp_path / "campaign")), allow_writes=True)) as client:
            return await client.call_tool("submit", {"spec": str(spec)})

    submitted = asyncio.run(submit())
    assert submitted.structured_content["retries"]["on"], submitted
    campaign = Campaign.open(dir=str(tmp_path / "campaign"))
    wait_until(lambda: campaign.status().settled, "the campaign to settle")
    assert campaign.status().sentence == "two: 1 completed"
