"""The files that agents leave in an attempt's folder, looked for by what the folder lists."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ...files.regular_files import concerns_one_file
from ...jobs.agent.evidence import NodeOutcome
from ...jobs.shared.documents import Unreadable
from ...jobs.shared.layout import AttemptPaths


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
