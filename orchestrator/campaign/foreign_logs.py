"""The logs that somebody names, taken apart by rank and node. Only reads.

Of a huge log the beginning and the end are read; labels of srun, torchrun, mpirun and pdsh take it apart by rank.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from dscampaign.files.ownership import Distrusted, open_trusted
from dscampaign.files.private_files import open_regular
from dscampaign.jobs.shared.job_array import read_payload
from dscampaign.jobs.shared.layout import payloads_file
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.one_job import OneJob
from dscampaign.orchestrator.formatting import printable

FILE_BYTES: Final = 8 << 20  # bytes read of a log: a quarter from its beginning, the rest from its end
ALL_BYTES: Final = 256 << 20
_LINE_BYTES: Final = 8192
_BLOCK_BYTES: Final = 1 << 20
END_LINES: Final = 400  # last lines of each rank's log, in which launchers report how processes ended
_LOG_NAME: Final = re.compile(r"\.(?:log|out|err|txt)(?:\.\d+)?$|\.[oe]\d+$|^std(?:out|err)$")
_RANK_IN_NAME: Final = re.compile(
    r"(?:rank|task|proc)[-_.]?(\d+)(?!.*(?:rank|task|proc)[-_.]?\d)|^(\d+)/std(?:out|err)\b"
)
_BAR: Final = re.compile(r"(.{0,200}?\d%\|[^|]{0,200}\|[^\[\]]{0,80}\[[^\]]{0,200}\])(.*)", re.DOTALL)
"""A progress bar, and the text behind it: the cursor stands at its end."""
_EACH_LINE: Final = re.compile(r"\[(?:default|trainer|worker|[a-z]*rank)(\d+)\]:(?! )|\[\d+,(\d+)\]<std(?:out|err)>: ?")
_SRUN: Final = re.compile(r" *(\d+): ?")
_PDSH: Final = re.compile(r"(?=\S*\d)([A-Za-z][\w.-]*): ")


@dataclass(frozen=True)
class Proof:
    """Where a line stands: its number from 1, None for a report of Slurm."""

    file: str
    line: int | None
    text: str


@dataclass(frozen=True)
class SeenFile:
    """A file, and how much of it was read."""

    path: str
    size_bytes: int
    read_bytes: int


@dataclass
class Stream:
    """The lines of a rank or node in a file."""

    path: Path
    rank: int | None
    host: str
    numbers: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def name(self, place: int) -> str:
        """Return the classifier's name for it."""
        return f"launcher-{place}.log" if self.rank is None else f"{place}_rank{self.rank}.log"

    def proof(self, index: int, text: str = "") -> Proof:
        """Return where a line stands in the file; `text` instead of its own."""
        return Proof(str(self.path), self.numbers[index], text or self.texts[index].strip())

    def find(self, pattern: re.Pattern[str]) -> tuple[re.Match[str], int] | None:
        """Find a report of an end among its last lines; return the match and the index of its last line."""
        match = pattern.search("\n".join(self.texts[-END_LINES:]))
        first = max(0, len(self.texts) - END_LINES)
        return (match, first + match.string.count("\n", 0, match.end())) if match else None


def files_of(job: OneJob) -> list[Path]:
    """Return the files that a job wrote to; if it is a campaign's, also the folder of its attempt."""
    logs = [log for log in job.logs if log.is_file()]
    task = job.view.job_id.partition("_")[2]
    for batch in dict.fromkeys(log.parent for log in logs if task and payloads_file(log.parent).exists()):
        with suppress(OSError, ValueError, Distrusted):
            path = payloads_file(batch)
            payload = read_payload(open_trusted(path, batch.parents[2]), path, int(task))
            return [Path(payload.attempt_dir), *logs]
    return logs


def gather(paths: Sequence[Path]) -> tuple[list[Stream], list[SeenFile]]:
    """Read logs, and folders of logs. Raises UserError if one cannot be read, or holds no logs."""
    streams, files, logs = list[Stream](), list[SeenFile](), list[Path]()
    for path in paths:
        inside = (Path(top, name) for top, _, names in os.walk(path) for name in names if _LOG_NAME.search(name))
        logs += sorted(inside) if path.is_dir() else [path]
    if paths and not logs:
        raise UserError(f"no logs in {paths[0]}", "name the files: `campaign diagnose FILE...`")
    most = min(FILE_BYTES, ALL_BYTES // max(1, len(logs)))
    for log in logs:
        streams += _streams(log, _pieces(log, most, files))
    return streams, files


def _pieces(log: Path, most: int, files: list[SeenFile]) -> Iterator[tuple[int, str]]:
    """A log's lines and their numbers, without escape sequences; each turn of a progress bar is a line."""
    try:
        with io.BufferedReader(open_regular(log)) as file:
            size = os.fstat(file.fileno()).st_size
            head, tail, passed = file.read(most if size <= most else most // 4), b"", 0
            if size > most:
                for left in range(size - most, 0, -_BLOCK_BYTES):
                    passed += file.read(min(left, _BLOCK_BYTES)).count(b"\n")
                tail = file.read(most - len(head))
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError(f"cannot read {log}: {reason}") from None
    if head.startswith(b"\x1f\x8b"):
        raise UserError(f"{log} is compressed", f"`gunzip {log}` first")
    files.append(SeenFile(str(log), size, len(head) + len(tail)))
    first, last = head.split(b"\n"), tail.split(b"\n")[1:]  # each is torn at the gap
    numbered = enumerate(first[: -1 if tail else None], 1), enumerate(last, len(first) + passed + 1)
    for number, line in chain(*numbered):
        for turn in line.split(b"\r"):
            if turn.strip():
                text = turn[:_LINE_BYTES].decode(errors="replace")
                text = text if text.isprintable() else printable(text).rstrip()
                bar = _BAR.fullmatch(text) if "%|" in text else None
                yield from ((number, part) for part in (bar.groups() if bar else (text,)) if part.strip())


def _streams(log: Path, pieces: Iterable[tuple[int, str]]) -> Iterable[Stream]:
    lines = list(pieces)
    match = _RANK_IN_NAME.search(f"{log.parent.name}/{log.name}")
    alone = next((int(rank) for rank in match.groups() if rank), None) if match else None
    label = next((label for label in (_SRUN, _PDSH) if _labels_most(label, lines)), _EACH_LINE)
    streams: dict[str, Stream] = {}
    for number, text in lines:
        label_match = label.match(text)
        who = next((word for word in label_match.groups() if word), "") if label_match else ""
        if who not in streams:
            rank = int(who) if who.isdecimal() and len(who) < 7 else alone
            streams[who] = Stream(log, rank, who if who and not who.isdecimal() else "")
        streams[who].numbers.append(number)
        streams[who].texts.append(text[label_match.end() :] if label_match else text)
    return streams.values()


def _labels_most(label: re.Pattern[str], lines: Sequence[tuple[int, str]]) -> bool:
    counts = Counter(match[1] for _, text in lines if (match := label.match(text)))
    return sum(counts.values()) * 2 >= len(lines) > 2 * len(counts) > 0
