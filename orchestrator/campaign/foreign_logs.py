"""The logs and records that somebody names, taken apart by rank and node. Only reads.

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
from dscampaign.jobs.agent.evidence import NodeOutcome, RankEnd, rank_ends
from dscampaign.jobs.shared.documents import Unreadable
from dscampaign.jobs.shared.job_array import read_payload
from dscampaign.jobs.shared.layout import AttemptPaths, payloads_file
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.one_job import OneJob
from dscampaign.orchestrator.formatting import printable

FILE_BYTES: Final = 8 << 20  # bytes read of a log: a quarter from its beginning, the rest from its end
ALL_BYTES: Final = 256 << 20
_LINE_BYTES: Final = 8192
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
    """Where a line stands: its number from 1, or, of the end of a huge file, its number from the end, from 1."""

    file: str
    line: int | None
    line_from_end: int | None
    text: str


@dataclass(frozen=True)
class SeenFile:
    """A file, and how much of it was read."""

    path: str
    size_bytes: int
    read_bytes: int


@dataclass
class Stream:
    """The lines of a rank or node in a file; numbers below 0 count from the file's end."""

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
        number = self.numbers[index]
        return Proof(str(self.path), max(number, 0) or None, max(-number, 0) or None, text or self.texts[index].strip())


@dataclass
class JobEvidence:
    """The input: logs, and of an attempt of ours the records of its nodes or at least of its ranks."""

    streams: list[Stream] = field(default_factory=list)
    outcomes: list[NodeOutcome] = field(default_factory=list)
    ranks: tuple[RankEnd, ...] = ()
    folders: list[Path] = field(default_factory=list)
    files: list[SeenFile] = field(default_factory=list)

    @property
    def ends(self) -> Iterator[tuple[Stream, int, str]]:
        """The last lines of each stream, and the index of the first of them."""
        for stream in self.streams:
            yield stream, max(0, len(stream.texts) - END_LINES), "\n".join(stream.texts[-END_LINES:])


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


def gather(paths: Sequence[Path]) -> JobEvidence:
    """Read logs, folders of logs and folders of attempts. Raises UserError if one cannot be read, or holds no logs."""
    evidence, logs = JobEvidence(), []
    for path in paths:
        if path.is_dir():
            logs += _of_folder(path, evidence)
        else:
            logs.append(path)
    most = min(FILE_BYTES, ALL_BYTES // max(1, len(logs)))
    for log in logs:
        evidence.streams += _streams(log, _pieces(log, most, evidence))
    return evidence


def _of_folder(folder: Path, evidence: JobEvidence) -> list[Path]:
    """Return the logs in a folder; of an attempt of ours also its records."""
    paths = AttemptPaths(folder)
    try:
        records = sorted(path for path in folder.iterdir() if re.fullmatch(r"outcome-\d+\.json", path.name))
        for path in records:
            evidence.outcomes += filter(None, [NodeOutcome.load(path)])
    except (OSError, Unreadable) as error:
        raise UserError(f"cannot read {folder}: {getattr(error, 'strerror', None) or error}") from None
    numbers = (re.search(r"\d+", path.name) for path in paths.ranks.glob("rank-*.json"))
    ranks = sorted(int(number[0]) for number in numbers if number)
    if records or ranks:
        evidence.folders.append(folder)
        evidence.ranks += rank_ends(paths, ranks)
        return [] if evidence.outcomes else sorted(paths.logs.glob("*.log"))
    logs = [Path(top, name) for top, _, files in os.walk(folder) for name in files if _LOG_NAME.search(name)]
    if not logs:
        raise UserError(f"no logs in {folder}", "name the files: `campaign diagnose FILE...`")
    return sorted(logs)


def _pieces(log: Path, most: int, evidence: JobEvidence) -> Iterator[tuple[int, str]]:
    """A log's lines and their numbers, without escape sequences; each turn of a progress bar is a line."""
    try:
        with io.BufferedReader(open_regular(log)) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(most if size <= most else most // 4)
            tail = b""
            if size > most:
                file.seek(len(head) - most, os.SEEK_END)
                tail = file.read(most - len(head))
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError(f"cannot read {log}: {reason}") from None
    if head.startswith(b"\x1f\x8b"):
        raise UserError(f"{log} is compressed", f"`gunzip {log}` first")
    evidence.files.append(SeenFile(str(log), size, len(head) + len(tail)))
    first = head.split(b"\n")
    last = tail.split(b"\n")[1:]  # the first is torn
    last = last[:-1] if last and not last[-1] else last
    for number, line in chain(enumerate(first[: -1 if tail else None], 1), enumerate(last, -len(last))):
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
