"""Diagnose the end of a job of anybody's with the campaign's classifier: from logs and Slurm's state. Only reads.

Of a huge log the beginning and the end are read; labels of srun, torchrun, mpirun and pdsh take it apart by rank.
"""

from __future__ import annotations

import io
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

from dscampaign.files.ownership import Distrusted, open_trusted
from dscampaign.files.private_files import open_regular
from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd, pick
from dscampaign.jobs.collect.formats import read_line
from dscampaign.jobs.shared.job_array import read_payload
from dscampaign.jobs.shared.layout import payloads_file
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.executors.one_job import OneJob
from dscampaign.orchestrator.failures.classify import classify
from dscampaign.orchestrator.failures.clues import Clue, ends_a_program
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Sureness, Verdict, headline
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


def gather(paths: Sequence[Path]) -> tuple[list[Stream], list[SeenFile], list[str]]:
    """Read logs, and the regular files of folders of logs. Raises UserError if a path is unreadable or has no logs."""
    streams, files, logs, skipped = list[Stream](), list[SeenFile](), list[Path](), list[str]()
    for path in paths:
        inside = (Path(top, name) for top, _, names in os.walk(path) for name in names if _LOG_NAME.search(name))
        for log in sorted(inside) if path.is_dir() else [path]:
            if path.is_dir() and not log.is_file():
                skipped.append(str(log))
            else:
                logs.append(log)
    if paths and not logs:
        raise UserError(f"no logs in {paths[0]}", "name the files: `campaign diagnose FILE...`")
    most = min(FILE_BYTES, ALL_BYTES // max(1, len(logs)))
    for log in logs:
        streams += _streams(log, _pieces(log, most, files))
    return streams, files, skipped


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

    def labels_most(label: re.Pattern[str]) -> bool:
        counts = Counter(match[1] for _, text in lines if (match := label.match(text)))
        return sum(counts.values()) * 2 >= len(lines) > 2 * len(counts) > 0

    label = next(filter(labels_most, (_SRUN, _PDSH)), _EACH_LINE)
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


_BY_SLURM: Final = {
    "CANCELLED": re.compile(r"\*\*\* JOB (\S+) ON (\S+) CANCELLED AT \S+ \*\*\*"),
    "PREEMPTED": re.compile(r"\*\*\* (?:JOB|STEP) (\S+) ON (\S+) CANCELLED AT .* DUE TO JOB REQUEUE"),
}
"""slurmstepd's reports that the classifier takes from Slurm alone; other ends have rules."""
_DEADLY: Final = signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGKILL, signal.SIGILL, signal.SIGFPE
_DEATHS: Final = {str(signal.strsignal(number)): number for number in _DEADLY}
"""Signals by the text that shells and srun print, such as `Segmentation fault`."""
_DIED: Final = f"(?P<death>{'|'.join(_DEATHS)})"
_BY_TORCHRUN: Final = (
    r"Root Cause \(first observed failure\):.{0,300}?host +: (?P<host>\S+).{0,100}?rank +: (?P<rank>\d+) "
    r".{0,100}?exitcode +: (?P<code>-?\d+)"
)
_BY_SRUN: Final = (
    r"srun: error: (?P<host>\S+): tasks? [\d,-]+: "
    rf"(?:Exited with exit code (?P<code>\d+)|{_DIED}|(?P<starved>Out Of Memory))"
)
_ENDS: Final = tuple(
    re.compile(pattern, re.DOTALL | re.MULTILINE)
    for pattern in (
        _BY_TORCHRUN,
        _BY_SRUN,
        r"(?:exits with return code =|exitcode *:) (?P<code>-?\d+)",
        r"terminated with signal (?P<signal>SIG[A-Z]+)",
        rf"^\S+: line \d+: +\d+ {_DIED}\b",
        rf"^{_DIED}(?: \(core dumped\))?$",
    )
)
"""Reports of a death: torchrun knows best, a shell least."""
_SLURM_SPEAKS: Final = re.compile(r"(?:slurmstepd|srun): ")
_MEM: Final = ("`--mem`", "")
_MADE_UP: Final = ("memory.events", "outcome-0.json")
"""Files of agents to which the classifier points: of other jobs they stand for the report of a launcher."""
_FROM_OUTSIDE: Final = (FailureClass.TIME_LIMIT, FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.NODE)
"""Ends that no rank of the job is to blame for."""


@dataclass(frozen=True)
class Explained:
    """Why a job ended; `kind` is None if nothing shows it."""

    kind: FailureClass | None
    sure: Sureness
    reason: str = ""
    rule: str = ""
    hint: str = ""
    proof: Proof | None = None
    # rank, node: of the process and machine that failed first, None if nothing names them
    rank: int | None = None
    node: str | None = None
    job: OneJob | None = None
    files: Sequence[SeenFile] = ()
    skipped: Sequence[str] = ()


@dataclass(frozen=True)
class _Death:
    number: int = 0
    rank: int | None = None
    host: str = ""
    starved: bool = False
    proof: Proof | None = None


def explain(paths: Sequence[Path], job: OneJob | None = None) -> Explained:
    """Judge the evidence of files and Slurm. Raises UserError as `gather`."""
    streams, files, skipped = gather(paths)
    death, view = _first_death(streams), job.view if job and job.view.terminal else None
    by_log = None if view else _slurms_report(streams)
    job_view = by_log[0] if by_log else view
    outcomes = list(_outcomes(streams, death, job_view))
    ended = Ended(job_view, outcomes, max(1, len(outcomes)), None, steps_decide=False, on_cpu=False, host_memory=_MEM)
    verdict = _root_cause(ended)
    if verdict.sure is Sureness.UNSURE and verdict.line is None:
        verdict = _before_any_program(ended, streams) or verdict
    explained = _explained(verdict, ended, streams, death, by_log[1] if by_log else None)
    if explained.kind is None and view and view.state == "COMPLETED":
        proof = Proof("slurm", None, f"{view.state} {view.exit_code}")
        explained = Explained(FailureClass.COMPLETED, Sureness.LIKELY, proof=proof)
    alone = view.nodes if view and re.fullmatch(r"[\w.-]+", view.nodes) else None
    return replace(explained, job=job, files=files, skipped=skipped, node=explained.node or alone)


def _root_cause(ended: Ended) -> Verdict:
    """The verdict; if somebody or the time limit ended a job that had failed before, why it had failed."""
    verdict = classify(ended)
    if verdict.kind not in (FailureClass.CANCELLED, FailureClass.TIME_LIMIT):
        return verdict
    earlier = classify(replace(ended, job=None))
    is_known = earlier.line is not None and earlier.rule and (earlier.suspect or earlier.sure is not Sureness.UNSURE)
    return earlier if is_known else verdict


def _before_any_program(ended: Ended, streams: Sequence[Stream]) -> Verdict | None:
    """The message of the batch script's shell about its own end; without Slurm's exit code, as if that fitted."""
    job = ended.job or JobView("", 0, "", "FAILED")
    alone = replace(ended, outcomes=(), agent_lines=_lines(enumerate(streams)), known_last_step=ended.last_step)
    for code in [ended.job.exit_code] if ended.job else ("127:0", "126:0", "2:0"):
        verdict = classify(replace(alone, job=job._replace(exit_code=code)))
        if verdict.line and verdict.line.file != "slurm":
            return verdict
    return None


def _explained(
    verdict: Verdict, ended: Ended, streams: Sequence[Stream], death: _Death, slurm: Proof | None
) -> Explained:
    kind: FailureClass | None = verdict.kind
    line, reason = verdict.line, verdict.reason
    clues = [*ended.errors, *ended.log_clues]
    if verdict.sure is Sureness.UNSURE and (line is None or line.file == "slurm"):
        own = (clue for clue in clues if ends_a_program(clue.text) and not _SLURM_SPEAKS.match(clue.text))
        last = next((clue for clue in own if not (death.number and clue.is_cascade)), None)
        kind, reason, line = (FailureClass.CRASH, headline(last.text), last.line) if last else (None, "", None)
    proof = _proof(line, streams, slurm) if line else None
    made_up = kind is None or (line is not None and line.file in _MADE_UP)
    if made_up and death.proof and (death.number or death.starved):
        kind, proof = verdict.kind, death.proof
        who = "a process" if death.rank is None else f"rank {death.rank}"
        reason = f"{who} was killed by {signal.Signals(death.number).name}" if death.number else reason
    if kind is FailureClass.CANCELLED and ended.job:
        by = ended.job.cancelled_by
        reason = "the job was cancelled" + (f" by user {by}" if by is not None else "")
    at = (line.file, line.number) if line else None
    clue = next((clue for clue in clues if (clue.line.file, clue.line.number) == at), Clue(LogLine("", 0, "")))
    rank = death.rank if clue.rank is None and kind not in _FROM_OUTSIDE else clue.rank
    host = verdict.host or clue.host or death.host
    return Explained(kind, verdict.sure, reason, verdict.rule, verdict.hint, proof, rank, host or None)


def _proof(line: LogLine, streams: Sequence[Stream], slurm: Proof | None) -> Proof:
    if line.file == "slurm" and slurm:
        return slurm
    if stream := next((item for place, item in enumerate(streams) if item.name(place) == line.file), None):
        return stream.proof(line.number - 1, line.text)
    return Proof(line.file, line.number or None, line.text)


# -- reports of Slurm and of launchers in a log -------------------------------------------------------------------


def _slurms_report(streams: Sequence[Stream]) -> tuple[JobView, Proof] | None:
    for stream in streams:
        for state, pattern in _BY_SLURM.items():
            if report := stream.find(pattern):
                return JobView("", 0, report[0][1], state, nodes=report[0][2]), stream.proof(report[1])
    return None


def _first_death(streams: Sequence[Stream]) -> _Death:
    for pattern in _ENDS:
        for stream in streams:
            if report := stream.find(pattern):
                fields = {name: value for name, value in report[0].groupdict().items() if value}
                code = int(fields.get("code", 0))
                number = -code if code < 0 else code - 128
                by_name = _DEATHS.get(fields.get("death", "")) or getattr(signal, fields.get("signal", ""), None)
                number = int(by_name) if by_name else number if number in _DEATHS.values() else 0
                rank = int(fields["rank"]) if "rank" in fields else None if "host" in fields else stream.rank
                host, starved = fields.get("host", stream.host), "starved" in fields
                return _Death(number, rank, host, starved, stream.proof(report[1]))
    return _Death()


# -- the classifier's evidence ------------------------------------------------------------------------------------


def _lines(streams: Iterable[tuple[int, Stream]]) -> tuple[LogLine, ...]:
    return tuple(line for place, stream in streams for line in pick(stream.name(place), stream.texts))


def _outcomes(streams: Sequence[Stream], death: _Death, job: JobView | None) -> Iterator[NodeOutcome]:
    """The records that agents would have written: one for each node that a log names, or one for all."""
    hosts: dict[str, list[tuple[int, Stream]]] = defaultdict(list)
    for place, stream in enumerate(streams):
        hosts[stream.host].append((place, stream))
    for node_rank, (host, own) in enumerate(hosts.items()):
        dies_here = host in ("", death.host) or not death.host
        steps = [read.step for _, other in own for text in other.texts[-END_LINES:] if (read := read_line(text, None))]
        yield NodeOutcome(
            generation=1,
            job_id=job.job_id if job else "",
            node_rank=node_rank,
            host=host,
            launcher_exit=256 - death.number if death.number and dies_here else 1,
            ended_by="",
            started_s=0.0,
            ended_s=(job.ended_s if job else None) or 60.0,
            start_step=0,
            last_step=max(steps, default=None),
            ranks=(RankEnd(death.rank or 0, None, None),),
            lines=_lines(own),
            oom_kills=int(death.starved and dies_here),
        )
