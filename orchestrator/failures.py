"""Evidence → failure class. Pure.

The earliest error over all ranks is the root cause: a rank that dies makes the others fail in their collectives, and
the launcher reports whichever it polls first. So the ranks' own records are asked before any log line, and Slurm's word
for the job only decides where Slurm is the one that ended it. What a rank says when another one has died (a cascade)
proves nothing while anything else does: the one that died may have left no word at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..jobs.evidence import LogLine, NodeOutcome
from .executor import JobView
from .failure_rules import CASCADE, REFUSALS, RULES, FailureClass, Rule

__all__ = ["EXIT_STOPPED", "Ended", "FailureClass", "Verdict", "classify", "refused"]

HEADLINE_LIMIT = 240
EXIT_STOPPED = 85
"""A script's word for "I was asked to stop and have saved a checkpoint"."""


@dataclass(frozen=True)
class Verdict:
    """A class with the proof.

    Attributes:
        reason: one line a person understands.
        hint: what to change, "" if nothing.
        line: the line that matched, with its file.
        rule: the name of the rule that matched.
    """

    kind: FailureClass
    reason: str
    hint: str = ""
    line: LogLine | None = None
    rule: str = ""


@dataclass(frozen=True)
class Ended:
    """All that is known of an attempt that has ended.

    Attributes:
        target_step: the step at which the run is complete, None if only its script knows.
        steps_decide: whether exit 0 before the target step is not success.
        on_cpu: whether the ranks' device memory is the host's.
        agent_lines: the agents' own log, where no agent left an outcome.
        known_start_step, known_last_step: what the store knew before, for an attempt that left no outcome.
    """

    job: JobView | None
    outcomes: Sequence[NodeOutcome]
    nodes: int
    target_step: int | None
    steps_decide: bool
    on_cpu: bool
    agent_lines: Sequence[LogLine] = ()
    known_start_step: int | None = None
    known_last_step: int | None = None

    @property
    def last_step(self) -> int | None:
        """The newest step that was reported."""
        reported = [o.last_step for o in self.outcomes] + [self.known_last_step]
        return max((step for step in reported if step is not None), default=None)

    @property
    def start_step(self) -> int:
        """The step it started from."""
        return max((o.start_step for o in self.outcomes), default=self.known_start_step or 0)

    @property
    def step(self) -> int:
        """How far the run has come: an attempt that resumes at the target step has nothing left to report."""
        return max(self.last_step or 0, self.start_step)

    @property
    def progressed(self) -> bool:
        """Whether at least one optimizer step was made."""
        return self.last_step is not None and self.last_step > self.start_step

    @property
    def trained(self) -> bool:
        """Whether this experiment has ever made a step: then its configuration is no mistake."""
        return self.step > 0

    @property
    def reached(self) -> bool:
        """Whether the target step was reached."""
        return self.target_step is not None and self.step >= self.target_step

    @property
    def stop_asked(self) -> bool:
        """Whether some node was asked to checkpoint and leave."""
        return any(o.ended_by == "stop" for o in self.outcomes)


def refused(sbatch_error: str) -> bool:
    """Whether sbatch's error text means that it will never accept the job as it is."""
    return bool(REFUSALS.search(sbatch_error))


def classify(ended: Ended) -> Verdict:
    """What the ended attempt was, with the proof."""
    return _finished(ended) or _ended_by_slurm(ended) or _ended_by_error(ended) or _unknown(ended)


def _finished(ended: Ended) -> Verdict | None:
    """Success and an orderly stop need the outcome records of every node: COMPLETED 0:0 alone proves nothing."""
    if len(ended.outcomes) < ended.nodes or any(o.launcher_exit is None for o in ended.outcomes):
        return None
    exits = {rank.exit for o in ended.outcomes for rank in o.ranks}
    clean = exits == {0} and all(o.launcher_exit == 0 for o in ended.outcomes)
    if exits == {0} and ended.reached:  # whatever became of the interpreters and the launcher afterwards
        return Verdict(FailureClass.COMPLETED, "")
    if clean and not ended.steps_decide and not ended.stop_asked:
        return Verdict(FailureClass.COMPLETED, "")
    if _stopped(ended, exits):
        return Verdict(FailureClass.STOPPED, f"stopped after a checkpoint at step {ended.step}")
    return None


def _stopped(ended: Ended, exits: set[int | None]) -> bool:
    """Whether the ranks left as they were asked to.

    A script's own exit code for it is word enough, and makes the launcher end the ranks that are slower to leave.
    """
    if EXIT_STOPPED in exits:
        return exits <= {0, EXIT_STOPPED, None} and not any(rank.error for o in ended.outcomes for rank in o.ranks)
    return exits == {0} and ended.stop_asked


def _ended_by_slurm(ended: Ended) -> Verdict | None:
    job = ended.job
    if job is None:
        return None
    if job.state in ("PREEMPTED", "REQUEUED"):
        return Verdict(FailureClass.PREEMPTED, "preempted by a job of higher priority", rule="slurm-state")
    if job.state == "CANCELLED":
        return Verdict(FailureClass.CANCELLED, "the job was cancelled outside this program", rule="slurm-state")
    if job.state in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"):
        return Verdict(FailureClass.NODE, f"Slurm: {job.state} on {job.nodes or 'its nodes'}", rule="slurm-state")
    if job.state in ("TIMEOUT", "DEADLINE") and not _root_errors(ended):
        return Verdict(FailureClass.TIME_LIMIT, "reached Slurm's time limit", rule="slurm-state")
    return None


def _ended_by_error(ended: Ended) -> Verdict | None:
    """The root error if a rank wrote one down; else memory, whose victims cannot; else what the logs say."""
    if roots := _root_errors(ended):
        crash = Verdict(FailureClass.CRASH, _headline(roots[0].text), line=roots[0])
        return _by_rule(roots[:1], ended) or _out_of_memory(ended) or crash
    return _out_of_memory(ended) or _by_rule(_log_lines(ended), ended) or _cascade(ended)


def _by_rule(lines: Iterable[LogLine], ended: Ended) -> Verdict | None:
    for line in lines:
        for rule in RULES:
            if not (rule.early and ended.trained) and rule.pattern.search(line.text):
                return _proved(rule, line, ended)
    return None


def _out_of_memory(ended: Ended) -> Verdict | None:
    if ended.job is not None and (ended.job.state == "OUT_OF_MEMORY" or ended.job.step_out_of_memory):
        return _memory(ended, LogLine("slurm", 0, ended.job.state), "slurm-state")
    if any(o.oom_kills for o in ended.outcomes):
        return _memory(ended, LogLine("memory.events", 0, "oom_kill"), "cgroup-oom")
    return None


def _cascade(ended: Ended) -> Verdict | None:
    """What the survivors said, and who left no word: the launcher's victims are among those, and so is the cause."""
    echoes = [line for line in _rank_errors(ended) if CASCADE.search(line.text)]
    if not echoes:
        return None
    silent = _silent_ranks(ended)
    beside = f" (rank {silent[0]} ended without a word)" if silent else ""
    return _by_rule(echoes[:1], ended) or Verdict(
        FailureClass.CRASH, _headline(echoes[0].text) + beside, line=echoes[0]
    )


def _proved(rule: Rule, line: LogLine, ended: Ended) -> Verdict:
    if rule.kind is FailureClass.HOST_OOM:
        return _memory(ended, line, rule.name)
    return Verdict(rule.kind, _headline(line.text), rule.hint, line, rule.name)


def _memory(ended: Ended, line: LogLine, rule: str) -> Verdict:
    """Host memory. Where the CPU trains it is the device's, and a smaller micro-batch helps; else it does not."""
    if ended.on_cpu:
        return Verdict(FailureClass.OOM, "out of memory: " + _headline(line.text), "", line, rule)
    return Verdict(FailureClass.HOST_OOM, "the node's memory ran out", "raise slurm.mem", line, rule)


def _unknown(ended: Ended) -> Verdict:
    job, outcomes = ended.job, ended.outcomes
    if not outcomes:
        state = f" (Slurm: {job.state} {job.exit_code})" if job and job.state != "GONE" else ""
        return Verdict(FailureClass.CRASH, f"ended without a record of how{state}", "see `campaign logs`")
    if lonely := next((o for o in outcomes if o.ended_by == "rendezvous"), None):
        return Verdict(FailureClass.NODE, f"{lonely.host} waited in vain for the first node", rule="rendezvous")
    silent = _silent_ranks(ended)
    if silent and len(outcomes) == ended.nodes:
        exits = ", ".join(str(o.launcher_exit) for o in outcomes)
        return Verdict(FailureClass.CRASH, f"rank {silent[0]} was killed by a signal (launcher exit {exits})")
    if ended.steps_decide and ended.target_step is not None and not silent:
        return Verdict(FailureClass.CRASH, f"ended at step {ended.step} of {ended.target_step}")
    return Verdict(FailureClass.CRASH, "failed without an error that is known", "see `campaign logs`")


def _silent_ranks(ended: Ended) -> list[int]:
    """The ranks that left no record of an end."""
    return sorted({rank.rank for o in ended.outcomes for rank in o.ranks if rank.exit is None})


def _root_errors(ended: Ended) -> list[LogLine]:
    """What ranks wrote down that is not the echo of another one's death, earliest first."""
    return _without_cascades(_rank_errors(ended))


def _rank_errors(ended: Ended) -> list[LogLine]:
    errors = sorted(
        (rank.error["ts"], rank.rank, f"{rank.error['type']}: {rank.error['message']}")
        for outcome in ended.outcomes
        for rank in outcome.ranks
        if rank.error
    )
    return [LogLine(f"ranks/rank-{rank}.json", 0, text) for _, rank, text in errors]


def _log_lines(ended: Ended) -> list[LogLine]:
    """Lines of the logs, cascades last. The launcher echoes our own command line: never evidence."""
    lines = [line for o in ended.outcomes for line in o.lines if not _echo(line.text)]
    lines += ended.agent_lines
    return [*_without_cascades(lines), *(line for line in lines if CASCADE.search(line.text))]


def _without_cascades(lines: Iterable[LogLine]) -> list[LogLine]:
    return [line for line in lines if not CASCADE.search(line.text)]


def _echo(text: str) -> bool:
    return " cmd = " in text or "spawned with command" in text or "exits with return code" in text


def _headline(text: str) -> str:
    """An error's text on one line: pydantic, for one, says only in its third line what it does not permit."""
    stripped = (line.strip() for line in text.splitlines())
    lines = [line for line in stripped if line and not line.startswith("For further information")]
    joined = " ".join(lines[:3]).removeprefix("builtins.").removeprefix("pydantic_core._pydantic_core.")
    joined = joined.split(" [type=")[0]
    joined = re.sub(r"RuntimeError: \[enforce fail [^\]]*\] [^.]*\. ", "", joined)  # c10's own line number
    joined = joined.rstrip(": ")  # of an error without words
    return joined if len(joined) <= HEADLINE_LIMIT else joined[:HEADLINE_LIMIT] + "…"
