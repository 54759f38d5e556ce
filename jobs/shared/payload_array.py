"""The payloads of a job array in a single file, of which each task reads only its own.

The first line has the offset of each task's line; the second the fields that all tasks share, and the line of a task
the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import BufferedReader, FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from dscampaign.files.atomic_files import write_atomically

from .payload import Payload

_OFFSETS: Final = "offsets"


def write_payloads(path: Path, payloads: Sequence[Payload]) -> None:
    """Write the payloads of tasks 0, 1, ...; complete or not at all."""
    wholes = [vars(payload) for payload in payloads]
    first = wholes[0]
    common = {name: value for name, value in first.items() if all(whole[name] == value for whole in wholes)}
    lines = [json.dumps({name: value for name, value in whole.items() if name not in common}) for whole in wholes]
    shared = json.dumps(common)
    # offsets count from the end of the first line, whose own length would else have to be known
    ends = accumulate((len(line) + 1 for line in lines), initial=len(shared) + 1)
    text = "\n".join([json.dumps({_OFFSETS: list(ends)[:-1]}), shared, *lines, ""])
    write_atomically(path, text, closed=Payload.closed)


def read_payload(file: FileIO, path: Path, index: int) -> Payload:
    """Return the payload of task ``index`` from the open file at ``path``.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no payload of this version for that task.
    """
    with BufferedReader(file) as lines:
        offsets = _object(lines.readline(), path).get(_OFFSETS)
        if not isinstance(offsets, list) or not 0 <= index < len(offsets) or type(offsets[index]) is not int:
            raise ValueError(f"{path}: nothing for task {index}")
        begin = lines.tell()
        common = _object(lines.readline(), path)
        lines.seek(begin + offsets[index])
        return Payload.of({**common, **_object(lines.readline(), path)}, path)


def read_array(file: FileIO, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the payload of each task, in order, as written by any version. Raises as `read_payload`."""
    with BufferedReader(file) as lines:
        _object(lines.readline(), path)
        common = _object(lines.readline(), path)
        yield from ({**common, **_object(line, path)} for line in lines)


def _object(line: bytes, path: Path) -> dict[str, Any]:
    try:
        return {**json.loads(line)}
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: not what was submitted") from None
