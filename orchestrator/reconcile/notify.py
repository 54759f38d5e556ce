"""Messages about a campaign: each event once, by processes that no pass waits for.

A lease named after campaign, event and way is the claim to deliver a message, its epoch the number of tries: two
reconcilers never both send it, and it is sent again if its sender died. The store keeps no part of the address.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from sqlalchemy import Connection

from dscampaign.db import leases, queries
from dscampaign.db.campaigns import run_counts
from dscampaign.db.errors import AWAY, SchemaMismatch
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import REMOVED, CauseCode, RunState
from dscampaign.db.store import Store
from dscampaign.files.ownership import Distrusted, trusted_bytes
from dscampaign.jobs.shared.variables import inheritable
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import UserError, needs_the_extra
from dscampaign.orchestrator.user_files import expanded

LONGEST_S: Final = 30.0  # after that a delivery is ended
CLAIM_S: Final = 120.0
TRIES: Final = 12  # in about half an hour
FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 240.0

WAYS: Final = ("command", "url")
TEST: Final = "test"
_TITLES: Final = {
    "settled": "nothing is left to do",
    "failed": "a run failed",
    "held": "a run is held",
    "budget": "limits.gpu_hours is used up",
    TEST: "a test message",
}
_APPRISE: Final = "from apprise.cli import main; main()"
_LEAST_SECRET: Final = 4  # characters of a part of an address that is hidden; shorter parts hold none


class Owed(NamedTuple):
    """A message that is to be delivered: its event and way, the claim, and the trouble of the last try."""

    event: str
    way: str
    lease: str
    trouble: str = ""


def deliver(store: Store, campaign: CampaignRow) -> list[str]:
    """Begin to deliver the messages that are due; return why others are late, "" for messages under way."""
    notify = campaign.provenance.get("notify")
    if not notify or campaign.desired == REMOVED:
        return []
    with store.read() as conn:
        counts = run_counts(conn, campaign.id)
        owed = list(_owed(conn, campaign, notify, counts))
    for item in owed:
        with store.write() as conn:
            claim = leases.acquire_lease(conn, item.lease, uuid.uuid4().hex, CLAIM_S)
        if claim:
            sent = message(campaign.name, item.event, counts)
            arguments = (store, campaign.id, item, claim, notify, sent)
            threading.Thread(target=_deliver, args=arguments, name=item.lease).start()
    return [item.trouble and f"message {item.event}: {item.trouble}; tried again" for item in owed]


def send(notify: Mapping[str, Any], way: str, sent: Mapping[str, Any]) -> str:
    """Deliver a message now, within `LONGEST_S`; return why it was not delivered, without secrets, or ""."""
    text = f"{sent['text']}\n{sent['next']}\n"
    if way == "command":
        env = {**inheritable(os.environ), "CAMPAIGN_MESSAGE": json.dumps(sent)}
        return _run("the command", ["bash", "-c", notify["command"]], text, env)[0]
    try:
        url = address(notify["url"])
    except UserError as error:
        return error.message
    program = [sys.executable, "-P", "-c", _APPRISE, "-v", "--storage-mode=memory", f"--title={sent['title']}"]
    trouble, answer = _run("apprise", program, text, {**os.environ, "APPRISE_URLS": url})
    return redacted(": ".join([trouble, *answer.splitlines()]), url) if trouble else ""


def require(notify: Mapping[str, Any]) -> None:
    """Raise UserError if an address cannot be read here, or apprise is not installed."""
    if "url" in notify:
        address(notify["url"])
        with needs_the_extra():
            if find_spec("apprise") is None:
                raise ModuleNotFoundError("apprise", name="apprise")


def address(reference: str) -> str:
    """Return the address that `env:NAME` or `file:PATH` refers to; raises UserError."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        if not (value := os.environ.get(name, "").strip()):
            raise UserError(f"notify.url: {name} is not set", f"`export {name}=...` where you submit and reconcile")
        return value
    try:
        return trusted_bytes(Path(expanded(name))).decode().strip()
    except Distrusted as doubt:
        raise UserError(f"notify.url: {doubt}", doubt.hint) from doubt
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"notify.url: {name} cannot be read", "write the address into this file") from error


def redacted(text: str, url: str) -> str:
    """Return the text without the address and its parts."""
    parts = {url, *(part for whole in (url, unquote(url)) for part in re.split(r"[/:@?&=,]+", whole))}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "***") if len(part) >= _LEAST_SECRET else text
    return f"{text:.300}"


def message(name: str, event: str, counts: Mapping[tuple[RunState, str | None], int]) -> dict[str, Any]:
    """Return a message: a line with the counts of runs, and the next command."""
    states = {state: sum(n for (of, _), n in counts.items() if of is state) for state, _ in counts}
    numbers = ", ".join(f"{states[state]:,} {state}" for state in RunState if state in states)
    title, failed = f"{name}: {_TITLES[event]}", ["--failed"] if event in ("failed", "held") else []
    return {
        "campaign": name,
        "event": event,
        "title": title,
        "text": f"{title} ({numbers})" if numbers else title,
        "counts": states,
        "next": typed("report" if event == "settled" else "status", name, *failed),
    }


def _owed(
    conn: Connection,
    campaign: CampaignRow,
    notify: Mapping[str, Any],
    counts: Mapping[tuple[RunState, str | None], int],
) -> Iterator[Owed]:
    held = {cause for state, cause in counts if state is RunState.HELD}
    happened = {
        "settled": bool(counts) and campaign.id not in queries.unsettled_campaigns(conn),
        "failed": any(state is RunState.FAILED for state, _ in counts),
        "held": bool(held - {CauseCode.BUDGET}),
        "budget": CauseCode.BUDGET in held,
    }
    for event in (event for event in notify["on"] if happened[event]):
        for way in (way for way in WAYS if way in notify):
            name = f"notify:{campaign.id}:{campaign.created_s:.0f}:{event}:{way}"  # an id may come back
            claim = leases.read_lease(conn, name)
            if claim is None or (claim.heard_s is None and claim.epoch < TRIES):
                yield Owed(event, way, name, claim.trouble if claim else "")


def _deliver(
    store: Store, campaign_id: int, item: Owed, claim: int, notify: Mapping[str, Any], sent: Mapping[str, Any]
) -> None:
    trouble = send(notify, item.way, sent)
    wait_s = min(FIRST_WAIT_S * 2 ** (claim - 1), LONGEST_WAIT_S)
    with suppress(*AWAY, SchemaMismatch), store.write() as conn:  # a claim without a result runs out
        if leases.release_lease(conn, item.lease, claim, wait_s):
            leases.report_pass(conn, item.lease, store.now(conn), heard=not trouble, trouble=trouble)
            kind, result = ("notify.failed", f"not delivered: {trouble}") if trouble else ("notify.sent", "delivered")
            queries.add_event(conn, campaign_id, kind, f"message {item.event} by {item.way}, try {claim}: {result}")


def _run(subject: str, command: Sequence[str], text: str, env: Mapping[str, str]) -> tuple[str, str]:
    begin = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process = begin(command, env=env, text=True, errors="replace", start_new_session=True)
    try:
        out, _ = process.communicate(text, timeout=LONGEST_S)
        return f"{subject} ended with {process.returncode}" if process.returncode else "", out.strip()
    except subprocess.TimeoutExpired:
        return f"{subject} took longer than {LONGEST_S:.0f} s", ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
