"""Why a job ended that this program did not start, by the same classifier: from logs, records and Slurm's word."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd, pick
from dscampaign.jobs.collect.lines import read_line
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.executors.one_job import OneJob
from dscampaign.orchestrator.failures.classify import classify
from dscampaign.orchestrator.failures.clues import Clue
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.orchestrator.failures.log_lines import ends_a_program
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Sureness, Verdict, headline

from .foreign_logs import END_LINES, Proof, Seen, SeenFile, Stream, gather

_CANCELLED: Final = re.compile(r"\*\*\* JOB (\S+) ON (\S+) CANCELLED AT \S+ \*\*\*")
_REQUEUED: Final = re.compile(r"\*\*\* (?:JOB|STEP) (\S+) ON (\S+) CANCELLED AT .* DUE TO JOB REQUEUE")
"""Ends for which the classifier has no rule, as a line of a log is not Slurm's word; other ends are told by rules."""
_ROOT: Final = re.compile(
    r"Root Cause \(first observed failure\):.{0,300}?host +: (\S+).{0,100}?rank +: (\d+) .{0,100}?exitcode +: (-?\d+)",
    re.DOTALL,
)
_DEATHS: Final = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
    "Killed": signal.SIGKILL,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
}
_DIED: Final = "|".join(_DEATHS)
_TASK: Final = re.compile(
    rf"srun: error: (\S+): tasks? [\d,-]+: (?:Exited with exit code (\d+)|({_DIED})|(Out Of Memory))"
)
_SLURM_SPEAKS: Final = re.compile(r"(?:slurmstepd|srun): ")
_CODE: Final = re.compile(r"exits with return code = (-?\d+)|exitcode *: (-?\d+)|terminated with signal (SIG[A-Z]+)")
_SHELL: Final = re.compile(rf"^\S+: line \d+: +\d+ ({_DIED})\b|^({_DIED})(?: \(core dumped\))?$", re.MULTILINE)


@dataclass(frozen=True)
class Explained:
    """Why a job ended; `kind` is None if nothing shows it.

    Attributes:
        rank, node: of the process and machine that failed first, None if nothing names them.
    """

    kind: FailureClass | None
    sure: Sureness
    reason: str = ""
    rule: str = ""
    proof: Proof | None = None
    rank: int | None = None
    node: str | None = None
    job: OneJob | None = None
    files: Sequence[SeenFile] = ()


_MADE_UP: Final = ("memory.events", "outcome-0.json")
"""What agents write, to which the classifier points: of other jobs it is made of what launchers tell."""

_FROM_OUTSIDE: Final = (FailureClass.TIME_LIMIT, FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.NODE)
"""Ends that no rank of the job is to blame for."""


@dataclass(frozen=True)
class _End:
    """How the first process to end did, as a launcher, srun or a shell tells it."""

    number: int = 0
    rank: int | None = None
    host: str = ""
    out_of_memory: bool = False
    proof: Proof | None = None


def explain(paths: Sequence[Path], job: OneJob | None = None) -> Explained:
    """Judge what the files and Slurm show.

    Raises:
        UserError: A path is missing or cannot be read, or a folder holds no logs.
    """
    seen = gather(paths)
    end, view = _how_it_ended(seen), job.view if job and job.view.terminal else None
    told = None if view else _slurms_words(seen)
    ended = _ended(seen, end, told[0] if told else view)
    verdict = _root_cause(ended)
    if verdict.sure is Sureness.UNSURE and verdict.line is None:
        verdict = _before_any_program(ended, seen) or verdict
    found = _explained(verdict, ended, seen, end, told[1] if told else None)
    if found.kind is None and view and view.state == "COMPLETED":
        proof = Proof("slurm", None, None, f"{view.state} {view.exit_code}")
        found = Explained(FailureClass.COMPLETED, Sureness.LIKELY, proof=proof)
    alone = view.nodes if view and re.fullmatch(r"[\w.-]+", view.nodes) else None
    return replace(found, job=job, files=seen.files, node=found.node or alone)


def _root_cause(ended: Ended) -> Verdict:
    """The verdict; if somebody or the time limit ended a job that had failed before, why it had failed."""
    verdict = _likeliest(ended)
    if verdict.kind not in (FailureClass.CANCELLED, FailureClass.TIME_LIMIT):
        return verdict
    earlier = _likeliest(replace(ended, job=None))
    known = earlier.line is not None and earlier.rule and earlier.sure is not Sureness.UNSURE
    return earlier if known else verdict


def _likeliest(ended: Ended) -> Verdict:
    """The verdict; a mistake that only one rank shows is called so: nobody tries this job again by itself."""
    verdict = classify(ended)
    if verdict.kind is not FailureClass.CRASH or verdict.suspect is None:
        return verdict
    return replace(verdict, kind=verdict.suspect, sure=Sureness.LIKELY)


def _before_any_program(ended: Ended, seen: Seen) -> Verdict | None:
    """What the shell of the batch script says of its own end; without Slurm's word, as if that fitted."""
    job = ended.job or JobView("", 0, "", "FAILED")
    alone = replace(ended, outcomes=(), agent_lines=_lines(enumerate(seen.streams)), known_last_step=ended.last_step)
    for code in [ended.job.exit_code] if ended.job else ("127:0", "126:0", "2:0"):
        verdict = _likeliest(replace(alone, job=job._replace(exit_code=code)))
        if verdict.line and verdict.line.file != "slurm":
            return verdict
    return None


def _explained(verdict: Verdict, ended: Ended, seen: Seen, end: _End, slurm: Proof | None) -> Explained:
    kind: FailureClass | None = verdict.kind
    line, reason = verdict.line, verdict.reason
    clues = [*ended.errors, *ended.log_clues]
    if verdict.sure is Sureness.UNSURE and (line is None or line.file == "slurm"):
        own = (clue for clue in clues if ends_a_program(clue.text) and not _SLURM_SPEAKS.match(clue.text))
        last = next((clue for clue in own if not (end.number and clue.is_cascade)), None)
        kind, reason, line = (FailureClass.CRASH, headline(last.text), last.line) if last else (None, "", None)
    proof = _proof(line, seen, slurm) if line else None
    made_up = not seen.outcomes and (kind is None or (line is not None and line.file in _MADE_UP))
    if made_up and end.proof and (end.number or end.out_of_memory):
        kind, proof = verdict.kind, end.proof
        who = "a process" if end.rank is None else f"rank {end.rank}"
        reason = f"{who} was killed by {signal.Signals(end.number).name}" if end.number else reason
    if kind is FailureClass.CANCELLED and ended.job:
        by = ended.job.cancelled_by
        reason = "the job was cancelled" + (f" by user {by}" if by is not None else "")
    clue = next((clue for clue in clues if line and _place(clue.line) == _place(line)), Clue(LogLine("", 0, "")))
    rank = end.rank if clue.rank is None and kind not in _FROM_OUTSIDE else clue.rank
    host = verdict.host or clue.host or end.host
    return Explained(kind, verdict.sure, reason, verdict.rule, proof, rank, host or None)


def _place(line: LogLine) -> tuple[str, int]:
    return line.file, line.number


def _proof(line: LogLine, seen: Seen, slurm: Proof | None) -> Proof:
    if line.file == "slurm" and slurm:
        return slurm
    if stream := next((one for place, one in enumerate(seen.streams) if one.name(place) == line.file), None):
        return stream.proof(line.number - 1, line.text)
    known = (path for folder in seen.folders for path in (folder / line.file, folder / "logs" / line.file))
    file = next((str(path) for path in known if path.exists()), line.file)
    return Proof(file, line.number or None, None, line.text)


# -- what Slurm and launchers tell in a log ---------------------------------------------------------------------


def _slurms_words(seen: Seen) -> tuple[JobView, Proof] | None:
    """Of a job that was cancelled or requeued, what slurmstepd wrote into the log; rules know the other ends."""
    for stream, first, text in seen.ends:
        for pattern, state in ((_CANCELLED, "CANCELLED"), (_REQUEUED, "PREEMPTED")):
            if said := pattern.search(text):
                at = first + text.count("\n", 0, said.start())
                return JobView("", 0, said[1], state, nodes=said[2]), stream.proof(at)
    return None


def _how_it_ended(seen: Seen) -> _End:
    """The first death that is told of; torchrun knows best, a shell least."""
    ends = list(seen.ends)
    for pattern in (_ROOT, _TASK, _CODE, _SHELL):
        for stream, first, text in ends:
            if said := pattern.search(text):
                last = said.end() if pattern is _ROOT else said.start()
                proof = stream.proof(first + text.count("\n", 0, last))
                return replace(_end(pattern, said, stream), proof=proof)
    return _End()


def _end(pattern: re.Pattern[str], said: re.Match[str], stream: Stream) -> _End:
    if pattern is _ROOT:
        return _End(_signal(int(said[3])), int(said[2]), said[1])
    if pattern is _TASK:
        number = int(_DEATHS[said[3]]) if said[3] else _signal(int(said[2] or 0))
        return _End(number, None, said[1], out_of_memory=bool(said[4]))
    if pattern is _CODE:
        name = said[3]
        number = getattr(signal, name, 0) if name else _signal(int(said[1] or said[2]))
        return _End(int(number), stream.rank, stream.host)
    return _End(int(_DEATHS[said[1] or said[2]]), stream.rank, stream.host)


def _signal(code: int) -> int:
    """The signal that an exit code stands for, 0 for none."""
    number = -code if code < 0 else code - 128
    return number if number in _DEATHS.values() else 0


# -- the classifier's evidence ------------------------------------------------------------------------------------


def _ended(seen: Seen, end: _End, job: JobView | None) -> Ended:
    outcomes = seen.outcomes or list(_outcomes(seen, end, job))
    return Ended(
        job,
        outcomes,
        nodes=max(1, len(outcomes)),
        target_step=None,
        steps_decide=False,
        on_cpu=False,
        agent_lines=_lines(enumerate(seen.streams)) if seen.outcomes else (),
        host_memory=("`--mem`", ""),
    )


def _lines(streams: Iterable[tuple[int, Stream]]) -> tuple[LogLine, ...]:
    return tuple(line for place, one in streams for line in pick(one.name(place), one.texts))


def _outcomes(seen: Seen, end: _End, job: JobView | None) -> Iterator[NodeOutcome]:
    """What agents would have written: one record for each node that a log names, or one for all."""
    if not seen.streams and not seen.ranks:
        return
    ended_s = (job.ended_s if job else None) or max((r.error["ts"] for r in seen.ranks if r.error), default=0.0) + 60.0
    hosts: dict[str, list[tuple[int, Stream]]] = defaultdict(list)
    for place, stream in enumerate(seen.streams):
        hosts[stream.host].append((place, stream))
    for node_rank, (host, streams) in enumerate(hosts.items() or [("", [])]):
        dies_here = host in ("", end.host) or not end.host
        steps = [read.step for _, one in streams for text in one.texts[-END_LINES:] if (read := read_line(text))]
        yield NodeOutcome(
            generation=1,
            job_id=job.job_id if job else "",
            node_rank=node_rank,
            host=host,
            launcher_exit=256 - end.number if end.number and dies_here else 1,
            ended_by="",
            started_s=0.0,
            ended_s=ended_s,
            start_step=0,
            last_step=max(steps, default=None),
            ranks=(seen.ranks if not node_rank else ()) or (RankEnd(end.rank or 0, None, None),),
            lines=_lines(streams),
            oom_kills=int(end.out_of_memory and dies_here),
        )
