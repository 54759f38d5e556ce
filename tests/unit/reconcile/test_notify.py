"""Messages about a campaign, delivered to a server on this machine that answers, fails or hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import Cause, CauseCode, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.reconcile import notify
from dscampaign.orchestrator.spec.sections import NotifyConfig
from dscampaign.tests.support.cli_world import World, make_world

SECRET = "horse-battery"


class Hook:
    """A webhook that answers with `code`, or not at all with code 0."""

    def __init__(self) -> None:
        self.code, self.heard, self._over = 200, list[dict[str, Any]](), threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if not hook.code:
                    hook._over.wait()
                self.send_response(hook.code or 200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://me:{SECRET}@127.0.0.1:{self._server.server_port}/{SECRET}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    made = Hook()
    monkeypatch.setenv("HOOK", made.url)
    yield made
    made.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    yield made
    made.store.close()


def campaign_of(world: World, **config: Any) -> CampaignRow:
    values = NotifyConfig(**config).model_dump(exclude_none=True, mode="json")
    with world.store.write() as conn:
        queries.update_campaign(conn, world.campaign_id, provenance={"notify": values})
        [campaign] = queries.list_campaigns(conn)
    return campaign


def deliver(world: World, campaign: CampaignRow) -> list[str]:
    """As a pass does; then wait for the processes."""
    before = set(threading.enumerate())
    owed = notify.deliver(world.store, campaign)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("notify"):
            thread.join()
    return owed


def events(store: Store, campaign: CampaignRow) -> list[tuple[str, str]]:
    with store.read() as conn:
        rows = queries.events(conn, campaign.id)
    return [(row.kind, row.message) for row in rows if row.kind.startswith("notify.")]


def test_a_message_is_tried_again_until_it_is_delivered_and_never_after(
    world: World, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "FIRST_WAIT_S", 0.0)
    campaign = campaign_of(world, url="env:HOOK")
    hook.code = 500
    assert deliver(world, campaign) == [""]
    hook.code = 200
    [late] = deliver(world, campaign)
    assert "error=500" in late
    assert deliver(world, campaign) == []
    assert len(hook.heard) == 2
    assert hook.heard[1]["message"] == (
        "sweep: a run failed (1 pending, 1 running, 1 completed, 1 failed)\ncampaign status sweep --failed"
    )
    told = events(world.store, campaign)
    assert [kind for kind, _ in told] == ["notify.failed", "notify.sent"]
    assert "HOOK" not in str(told)
    assert SECRET not in (world.dir / "campaign.db").read_bytes().decode(errors="replace")


def test_a_service_that_hangs_is_given_up_and_named_without_its_address(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LONGEST_S", 2.0)
    hook.code = 0
    sent = notify.message("sweep", notify.TEST, {})
    assert notify.send({"url": "env:HOOK"}, "url", sent) == "apprise took longer than 2 s"
    assert notify.send({"command": "sleep 60 & wait"}, "command", sent) == "the command took longer than 2 s"
    text = f"no route to 127.0.0.1 for me:{SECRET}, {SECRET.replace('-', '%2D')} at {hook.url}"
    assert SECRET not in notify.redacted(text, hook.url)


def test_of_two_reconcilers_one_delivers(world: World, tmp_path: Path) -> None:
    campaign = campaign_of(world, command=f'cat >> {tmp_path}/heard; echo "$CAMPAIGN_MESSAGE" >> {tmp_path}/json')
    stores = [Store.open(f"sqlite:///{world.dir}/campaign.db") for _ in range(2)]
    both = [threading.Thread(target=notify.deliver, args=(store, campaign)) for store in stores]
    for thread in both:
        thread.start()
    while waiting := [each for each in threading.enumerate() if each in both or each.name.startswith("notify")]:
        waiting[0].join()
    assert deliver(world, campaign) == []
    assert (tmp_path / "heard").read_text().count("a run failed") == 1
    [line] = (tmp_path / "json").read_text().splitlines()
    found = json.loads(line)
    assert (found["event"], found["counts"]["failed"], found["next"]) == ("failed", 1, "campaign status sweep --failed")
    for store in stores:
        store.close()


def test_a_message_is_given_up_after_many_tries(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(notify, "TRIES", 2)
    campaign = campaign_of(world, command="exit 7")
    assert [len(deliver(world, campaign)) for _ in range(3)] == [1, 1, 0]
    assert all("the command ended with 7" in message for _, message in events(world.store, campaign))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bad": {"state": RunState.HELD}}, ["held"]),
        ({"bad": {"state": RunState.HELD, "cause": Cause(CauseCode.BUDGET)}}, ["budget"]),
        ({"small": {"state": RunState.COMPLETED}, "new": {"state": RunState.CANCELLED}}, ["settled", "failed"]),
        ({"bad": {"state": RunState.COMPLETED}}, []),
    ],
)
def test_each_event_is_recognized(
    world: World, tmp_path: Path, changes: dict[str, dict[str, Any]], expected: list[str]
) -> None:
    for run, values in changes.items():
        world.set_run(run, **values)
    deliver(world, campaign_of(world, command=f'echo "$CAMPAIGN_MESSAGE" >> {tmp_path}/$RANDOM.json'))
    assert sorted(json.loads(file.read_text())["event"] for file in tmp_path.glob("*.json")) == sorted(expected)


def test_a_campaign_with_trials_to_come_is_not_settled(world: World, tmp_path: Path) -> None:
    for run in ("small", "bad", "new"):
        world.set_run(run, state=RunState.COMPLETED)
    told = tmp_path / "told"
    before = campaign_of(world, on=["settled"], command=f"cat > {told}")
    for to_come in (True, False):
        provenance = {**before.provenance, "search": {"open": to_come}}
        with world.store.write() as conn:
            queries.update_campaign(conn, world.campaign_id, provenance=provenance)
        deliver(world, replace(before, provenance={**before.provenance, "search": {"open": True}}))
        assert told.exists() is not to_come


def test_an_address_that_cannot_be_read_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    with pytest.raises(UserError, match="HOOK is not set"):
        notify.require({"url": "env:HOOK"})
    with pytest.raises(UserError, match="cannot be read"):
        notify.require({"url": f"file:{tmp_path}/none"})
    (tmp_path / "url").write_text("json://h\n")
    (tmp_path / "url").chmod(0o600)
    assert notify.address(f"file:{tmp_path}/url") == "json://h"
    monkeypatch.setattr(notify, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="apprise") as error:
        notify.require({"url": f"file:{tmp_path}/url"})
    assert "dscampaign[notify]" in str(error.value.hint)
    for wrong in ({"url": "slack://a/b"}, {"on": ["settled"]}, {"on": ["done"], "command": "x"}):
        with pytest.raises(ValueError, match="NotifyConfig"):
            NotifyConfig(**wrong)
