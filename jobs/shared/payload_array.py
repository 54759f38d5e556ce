"""The payloads of a job array in a single file: the fields that all tasks share, then a line for each task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import write_atomically

from .payload import Payload


def write_payloads(path: Path, payloads: Sequence[Payload]) -> None:
    """Write the payloads of tasks 0, 1, ...; complete or not at all."""
    wholes = [vars(payload) for payload in payloads]
    first = wholes[0]
    common = {name: value for name, value in first.items() if all(whole[name] == value for whole in wholes)}
    lines = [json.dumps({name: value for name, value in whole.items() if name not in common}) for whole in wholes]
    write_atomically(path, "\n".join([json.dumps(common), *lines, ""]), closed=Payload.closed)


def read_payload(file: FileIO, path: Path, index: int) -> Payload:
    """Return the payload of task ``index`` from the open file at ``path``.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no payload of this version for that task.
    """
    raw = next(islice(read_array(file, path), index, None), None) if index >= 0 else None
    if raw is None:
        raise ValueError(f"{path}: nothing for task {index}")
    return Payload.of(raw, path)


def read_array(file: FileIO, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the payload of each task, in order, as written by any version. Raises as `read_payload`."""
    with BufferedReader(file) as lines:
        common = _object(lines.readline(), path)
        yield from ({**common, **_object(line, path)} for line in lines)


def _object(line: bytes, path: Path) -> dict[str, Any]:
    try:
        return {**json.loads(line)}
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: not what was submitted") from None
