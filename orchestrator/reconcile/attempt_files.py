"""The files that agents leave in an attempt's folder, looked for by what the folder lists."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dscampaign.files.regular_files import concerns_one_file, open_regular
from dscampaign.jobs.agent.evidence import LINE_LIMIT, LogLine, NodeOutcome
from dscampaign.jobs.shared.documents import Unreadable
from dscampaign.jobs.shared.layout import AttemptPaths

AGENT_LOG_LINES = 40
LOG_BYTES = 1 << 20


def names_in(files: AttemptPaths) -> Collection[str] | None:
    """Return the names in an attempt's folder; None if it cannot be listed.

    A network file system may answer from memory for minutes that a file is absent which was looked for before. To list
    the folder asks the server, so a file is looked for only if it is listed.
    """
    try:
        return frozenset(entry.name for entry in os.scandir(files.dir))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as exc:
        if concerns_one_file(exc):
            return None
        raise


def there(paths: Iterable[Path], names: Collection[str] | None) -> Iterator[Path]:
    """Return those of an attempt's files that may be there."""
    return (path for path in paths if is_there(path, names))


def is_there(path: Path, names: Collection[str] | None) -> bool:
    """Return whether a file of an attempt may be there, by what `names_in` returned."""
    return names is None or path.name in names


def outcomes_in(
    files: AttemptPaths, nodes: int, names: Collection[str] | None
) -> tuple[tuple[NodeOutcome, ...], tuple[str, ...]]:
    """What the agents left, and what is wrong with that which cannot be read."""
    found, unreadable = [], []
    for path in there(map(files.outcome, range(nodes)), names):
        try:
            found.append(NodeOutcome.load(path))
        except Unreadable as exc:
            unreadable.append(str(exc))
    return tuple(outcome for outcome in found if outcome is not None), tuple(unreadable)


def tail_of(log: Path) -> list[LogLine]:
    """Return the last lines of a log, cut like those that an agent keeps, with numbers if the log is not too long."""
    with suppress(OSError), open_regular(log) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        lines = (file.read(LOG_BYTES) or b"").decode(errors="replace").splitlines()
        first = max(0, len(lines) - AGENT_LOG_LINES)
        numbered = enumerate(lines[first:], first + 1)
        return [LogLine(log.name, n * (size <= LOG_BYTES), text.rstrip()[:LINE_LIMIT]) for n, text in numbered]
    return []
