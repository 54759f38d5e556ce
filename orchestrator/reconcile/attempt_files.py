"""The files of an attempt: its claim, and the records that agents leave in its folder.

A job takes the claim before it begins an attempt; the reconciler, so that no job can begin an attempt that is over.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dscampaign.db.records import AttemptRow
from dscampaign.db.storable import is_whole
from dscampaign.files.atomic_files import create_exclusively, read_json
from dscampaign.files.private_files import concerns_one_file, make_below, open_regular
from dscampaign.jobs.agent.evidence import LINE_LIMIT, LogLine, NodeOutcome
from dscampaign.jobs.shared.documents import Unreadable
from dscampaign.jobs.shared.layout import AttemptPaths, RunPaths
from dscampaign.jobs.shared.payload import Identity
from dscampaign.orchestrator.executors.job_request import attempt_paths

AGENT_LOG_LINES = 40
LOG_BYTES = 1 << 20


def take_claim(row: AttemptRow) -> bool:
    """Take an attempt's claim for the reconciler; return False if a job was faster.

    A claim of another submission keeps the jobs of this one from beginning just as well.
    """
    files, own = attempt_paths(row), asdict(Identity.of(row))
    if files.claim.exists():
        return _is_fenced(row)
    make_below(files.dir.parents[1], files.dir)  # the folder of all runs is made by whoever records the campaign
    is_new = create_exclusively(files.claim, json.dumps({"job_id": revoked(row.token), "ts": time.time(), **own}))
    return is_new or _is_fenced(row)


def _is_fenced(row: AttemptRow) -> bool:
    claim = read_json(attempt_paths(row).claim) or {}
    return claim.get("job_id") == revoked(row.token) or not Identity.of(row).owns(claim)


def is_foreign(row: AttemptRow) -> bool:
    """Return whether the files in an attempt's folder are another submission's, by the claim there."""
    return not Identity.of(row).owns(read_json(attempt_paths(row).claim) or {})


def is_claimed(row: AttemptRow) -> bool:
    """Return whether an attempt's claim is taken. Raises OSError if that cannot be known."""
    return attempt_paths(row).claim.exists()


def job_claim(files: AttemptPaths, token: str) -> dict[str, Any] | None:
    """Return a job's claim, empty if it cannot be read; None for none, or the reconciler's own."""
    claim = read_json(files.claim)
    if claim is None:
        return {} if files.claim.exists() else None
    return None if claim.get("job_id") == revoked(token) else claim


def newest_begun(run: RunPaths) -> int:
    """Return the highest generation of a run that may have begun, 0 for none: it need not be the current generation."""
    current = (read_json(run.current) or {}).get("generation")
    numbers = (claim.parent.name[1:] for claim in run.dir.glob("g[0-9]*/claim"))
    claimed = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return max(claimed, current - 1 if is_whole(current, 1) else 0)


def revoked(token: str) -> str:
    """Return the job in a claim that the reconciler has taken."""
    return f"revoked-{token}"


def names_in(files: AttemptPaths) -> Collection[str] | None:
    """Return the names in an attempt's folder; None if it cannot be listed.

    A network file system may answer for minutes that a file which was looked for before is absent; a listing asks the
    server.
    """
    try:
        return frozenset(entry.name for entry in os.scandir(files.dir))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as exc:
        if concerns_one_file(exc):
            return None
        raise


def is_there(path: Path, names: Collection[str] | None) -> bool:
    """Return whether a file of an attempt may exist, by the result of `names_in`."""
    return names is None or path.name in names


def outcomes_in(
    files: AttemptPaths, nodes: int, names: Collection[str] | None
) -> tuple[tuple[NodeOutcome, ...], tuple[str, ...]]:
    """Return the agents' outcomes, and why others cannot be read."""
    outcomes, unreadable = [], []
    for path in map(files.outcome, range(nodes)):
        try:
            outcomes += [NodeOutcome.load(path)] if is_there(path, names) else []
        except Unreadable as exc:
            unreadable.append(str(exc))
    return tuple(outcome for outcome in outcomes if outcome is not None), tuple(unreadable)


def tail_of(log: Path) -> list[LogLine]:
    """Return the last lines of a log, cut as the agent cuts them, with numbers if the log is not too long."""
    with suppress(OSError), open_regular(log) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        lines = (file.read(LOG_BYTES) or b"").decode(errors="replace").splitlines()
        first = max(0, len(lines) - AGENT_LOG_LINES)
        numbered = enumerate(lines[first:], first + 1)
        return [LogLine(log.name, n * (size <= LOG_BYTES), text.rstrip()[:LINE_LIMIT]) for n, text in numbered]
    return []
