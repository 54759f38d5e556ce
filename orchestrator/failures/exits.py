"""Verdicts from states, exit codes and signals alone: Slurm's, the agents' and the launchers'. Pure."""

from __future__ import annotations

import re
import signal
from typing import Final

from dscampaign.db.states import RunState
from dscampaign.jobs.agent.evidence import NO_WORKDIR, REFUSED, LogLine
from dscampaign.orchestrator.executors.base import JobView

from . import errnos
from .clues import Clue
from .evidence import Ended, death_signal, first_to_die, silent_ranks
from .groups import gist
from .policy import FailureClass
from .raised import Place, places
from .scene import Scene
from .verdict import Sureness, Verdict, headline

SET_UP: Final = "set-up"
LAUNCH: Final = "slurm-launch"
NOT_TRUSTED: Final = "not-trusted"
"""The rules of attempts that ended before anything of this program or of the user's training ran."""

NEVER_BEGAN = {
    "rendezvous": "timed out waiting for the first node",
    NO_WORKDIR: "does not have the folder where the training starts",
}
"""Why an agent started no ranks, by its own code for it."""

_BY_SHELL: Final = ("126:0", "127:0", "2:0")
_SHELL: Final = re.compile(
    r"line \d+: (?:.*: (?:No such file or directory|command not found|Permission denied|cannot execute)"
    r"|syntax error|unexpected (?:EOF|end of file))"
)
"""A shell's exit codes and message of an end before anything ever ran."""
_WHERE: Final = re.compile(r"^\S+: line \d+: ")
"""How the shell begins a message, with the script's name."""
_OF_A_RUNTIME: Final = re.compile(
    r"^(?:ch-run\[\d+\]: error: |FATAL:\s{2,}|(?:slurmstepd(?:-\S+)?|srun): error: .*?pyxis: "
    r"|\S*srun: unrecognized option|.*exec: (?:ch-run|apptainer|srun): not found)"
)
"""The beginning of an error of a container's runtime: Charliecloud, Apptainer, pyxis, none at all."""
_VAGUE: Final = re.compile(
    r"printing enroot log|couldn't start container|child \d+ failed|task_init|container start failed|: failed to \w+ "
)
"""Errors of pyxis beside that which names the cause."""
_NODE_NAME: Final = re.compile(r"[\w.-]+")
_WORKDIR_HINT = "if no node has it, name a folder that all have with `workdir:`, or leave a link in its place"
_LAUNCH_HINT: Final = "if every node does so, check that the nodes have `dir` and `workdir` under these paths"
_TAKEN: Final = "75:0"
"""How a job ends whose attempt is taken: by its own first start, if agents have left an outcome."""
_STATES: Final = {
    "PREEMPTED": (FailureClass.PREEMPTED, "preempted by a job of higher priority"),
    "CANCELLED": (FailureClass.CANCELLED, "the job was cancelled outside this program"),
}
_BY_ITSELF: Final = ("COMPLETED", "FAILED", "GONE")
"""How a job ends that nobody else ended."""
_USAGE: Final = 2
"""With this exit code argparse, click and others refuse arguments."""
_SIGNALLED: Final = 128
"""From this exit status on, a signal ended the command."""


def ended_by_slurm(ended: Ended) -> Verdict | None:
    """Return the verdict if Slurm preempted, cancelled or requeued the job, or lost its node."""
    job = ended.job
    restarted = ended.started_again or bool(ended.outcomes and job is not None and job.exit_code == _TAKEN)
    interrupted = any(outcome.ended_by == "signal" for outcome in ended.outcomes)
    by_itself = any(rank.exit or rank.error for rank in ended.ranks)
    # its signal may have come to the ranks a moment before the agent
    if restarted and (interrupted or not by_itself):
        line = LogLine("slurm", 0, _state(job) if job else "the job began again")
        reason = "Slurm ended the job and started it again"
        return Verdict(FailureClass.PREEMPTED, reason, line=line, rule="slurm-requeue")
    if job is None:
        return None
    line = LogLine("slurm", 0, _state(job))
    if job.state == "DEADLINE" and not ended.outcomes and job.never_began:
        reason, hint = "its deadline passed in the queue", "give `slurm.deadline` more time, or leave it out"
        return Verdict(FailureClass.REFUSED, reason, hint, line, "slurm-deadline")
    if job.state in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"):
        host = job.nodes if _NODE_NAME.fullmatch(job.nodes) else ""
        reason = f"Slurm: {job.state} on {job.nodes or 'its nodes'}"
        return Verdict(FailureClass.NODE, reason, line=line, rule="slurm-state", host=host)
    return Verdict(*_STATES[job.state], line=line, rule="slurm-state") if job.state in _STATES else None


def _state(job: JobView) -> str:
    return f"{job.state} {job.exit_code} {job.reason}".strip()


def set_up(ended: Ended) -> Verdict | None:
    """Return the verdict on a line of `setup` that failed: a mistake if it fails in every try."""
    failure, job = ended.set_up, ended.job
    if failure is None or ended.outcomes or (job and job.state not in _BY_ITSELF):
        return None
    last = next((line.text for line in reversed(ended.agent_lines) if line.text.strip()), "")
    last = headline(_WHERE.sub("", last))
    how = f"with {failure.status}" if failure.status else "by leaving the shell"
    reason = f"line {failure.line} of `setup` ended {how}: {failure.text}{f' ({last})' if last else ''}"
    hint = "correct `setup`; a line that may fail ends with `|| true`"
    clue = Clue(LogLine("setup", failure.line, failure.text), failure.host)
    kind = FailureClass.NODE if ended.trained else FailureClass.CRASH
    certain = not ended.trained and failure.status < _SIGNALLED
    place = f"{SET_UP} {failure.line}: {failure.text}" if certain else ""
    return clue.verdict(kind, SET_UP, reason, hint, place=place)


def no_container(ended: Ended) -> Verdict | None:
    """Return the verdict on a container that did not start: a mistake if it fails on every node and in every try."""
    without = [outcome for outcome in ended.outcomes if all(rank.pid is None for rank in outcome.ranks)]
    errors = [Clue(line, o.host) for o in without for line in o.lines if _OF_A_RUNTIME.match(line.text)]
    clue = next((error for error in errors if not _VAGUE.search(error.text)), next(iter(errors), None))
    if clue is None or "namespace" in clue.text:  # of which a node has only so many
        return None
    hint = "correct `container`; `campaign doctor SPEC --on-node` starts it once"
    starts = ended.trained or len(without) < len(ended.outcomes)
    kind = FailureClass.NODE if starts else FailureClass.CRASH
    passes = starts or any(Scene(error.raised, trained=False).passing for error in errors)
    place = "" if passes else f"{SET_UP} of the container: {gist(clue.text)}"
    return clue.verdict(kind, SET_UP, f"the container did not start: {headline(clue.text)}", hint, place=place)


def refused(ended: Ended) -> Verdict | None:
    """Return the verdict on an agent that refused to run because others can write to files that it would trust."""
    line = next((line for line in ended.agent_lines if line.text.startswith(REFUSED)), None)
    if line is None or ended.outcomes:
        return None
    reason = headline(line.text.removeprefix(REFUSED).strip())
    hint = "only you may own and write the files that it names: chmod go-w"
    return Clue(line).verdict(FailureClass.DETERMINISTIC, NOT_TRUSTED, reason, hint)


def never_began(ended: Ended) -> Verdict | None:
    """Return the verdict on a node that started no ranks."""
    idle = next((o for o in ended.outcomes if o.ended_by in NEVER_BEGAN), None)
    if idle is None:
        return None
    alone = idle.ended_by == NO_WORKDIR and sum(o.ended_by == idle.ended_by for o in ended.outcomes) == 1
    reason = f"{idle.host} {NEVER_BEGAN[idle.ended_by]}"
    reason, hint = (f"{reason}: {idle.workdir}", _WORKDIR_HINT) if idle.workdir else (reason, "")
    line = LogLine(f"outcome-{idle.node_rank}.json", 0, idle.ended_by)
    return Verdict(FailureClass.NODE, reason, hint, line, idle.ended_by, idle.host if alone else "")


def unknown(ended: Ended) -> Verdict:
    """Return the verdict on an attempt of which only exit codes and signals are known."""
    job, outcomes = ended.job, ended.outcomes
    if not outcomes:
        return _without_outcome(ended)
    if fault := faulted(ended):
        return fault
    if len(outcomes) < ended.nodes:
        missing = f"{ended.nodes - len(outcomes)} of {ended.nodes} nodes left no record"
        slurm = f" (Slurm: {job.state} {job.exit_code})" if job else ""
        return Verdict(FailureClass.CRASH, missing + slurm)
    return _by_exits(ended)


def faulted(ended: Ended) -> Verdict | None:
    """Return the verdict on a SIGSEGV or SIGBUS without a message: the script's own kernels, or the machine."""
    number = death_signal(ended)
    if number not in (signal.SIGSEGV, signal.SIGBUS) or not silent_ranks(ended) or ended.on_cpu:
        return None
    name, host = first_to_die(ended)
    outcome = next(o for o in ended.outcomes if o.launcher_exit in (-number, 256 - number))
    line = LogLine(f"outcome-{outcome.node_rank}.json", 0, f"launcher exit {outcome.launcher_exit}")
    return Verdict(FailureClass.GPU_FAULT, f"{name} {how_it_died(ended)}", "", line, "exit-code", host)


def how_it_died(ended: Ended) -> str:
    """Return how a rank without a record ended, as far as its launcher's exit code shows."""
    number = death_signal(ended)
    return "left no record of its end" if number is None else f"was killed by {signal_name(number)}"


def signal_name(number: int) -> str:
    """`SIGKILL`."""
    names = {known.value: known.name for known in signal.Signals}  # without the real-time signals
    return names.get(number, f"signal {number}")


def _by_exits(ended: Ended) -> Verdict:
    if killed := next((o for o in ended.outcomes if (o.launcher_exit or 0) < 0 and not o.ended_by), None):
        return Verdict(FailureClass.CRASH, f"the launcher on {killed.host} {how_it_died(ended)}", host=killed.host)
    silent = silent_ranks(ended)
    if left := [(rank, o.host) for o in ended.outcomes for rank in o.ranks if (rank.exit or 0) > 0]:
        rank, host = left[0]
        last = _last_line(ended, f"_rank{rank.rank}.log")  # a script that ends itself has often written why
        hint, text = ("", f": {headline(last.text)}") if last else ("see its log", "")
        reason = f"rank {rank.rank} exited with {rank.exit}{text}"
        if not ended.trained and {rank.exit for rank in ended.ranks} <= {_USAGE, None}:
            return Verdict(FailureClass.DETERMINISTIC, reason, "correct `command:`", last, "exit-2")
        return Verdict(FailureClass.CRASH, reason, hint, last, host=host if silent else "")
    if silent:
        name, host = first_to_die(ended)
        return Verdict(FailureClass.CRASH, f"{name} {how_it_died(ended)}", host=host)
    if ended.steps_decide and ended.target_step is not None:
        return Verdict(FailureClass.CRASH, f"ended at step {ended.step} of {ended.target_step}")
    return Verdict(FailureClass.CRASH, "it failed without a known error", "see its log")


def _last_line(ended: Ended, log: str) -> LogLine | None:
    lines = [line for o in ended.outcomes for line in o.lines if log in line.file and line.text.strip()]
    return lines[-1] if lines else None


def _without_outcome(ended: Ended) -> Verdict:
    """The agents died too, or never started: only Slurm's record is left."""
    job = ended.job
    if job is None or job.state == "GONE":
        return Verdict(FailureClass.CRASH, "ended without a record", "see its log")
    said = next((line for line in ended.agent_lines if _SHELL.search(line.text)), None)
    if said and job.exit_code in _BY_SHELL and not ended.trained:
        hint, sure = "correct `python:` or `slurm.setup`", Sureness.UNSURE
        return Clue(said).verdict(FailureClass.CRASH, "no-interpreter", hint=hint, sure=sure, place=said.text)
    line = LogLine("slurm", 0, _state(job))
    if job.exit_code == "0:53" or job.reason == "JobLaunchFailure":
        host = job.nodes if _NODE_NAME.fullmatch(job.nodes) else ""
        place = "" if ended.trained or not host else LAUNCH
        reason = f"Slurm could not start it: {line.text}"
        return Verdict(FailureClass.NODE, reason, _LAUNCH_HINT, line, LAUNCH, host, place=place)
    return Verdict(FailureClass.CRASH, f"ended without a record (Slurm: {line.text})", "see its log", line)


EXIT_STOPPED = 85
"""The exit code of a script that was asked to stop and has saved a checkpoint."""

_OUTCOME_PHASES = frozenset({"checkpoint", "eval"})
"""Work after the last step on which a run's results still depend."""
_OF_TEARDOWN = frozenset({Place.TEARDOWN, Place.TRACKER, Place.COLLECTIVE})
_OF_RESULTS = frozenset({Place.SAVING, Place.LOADING, Place.DATA})
_MACHINE_FAULTS = frozenset({errnos.Fault.STORAGE, errnos.Fault.MEMORY})
_OF_INTERPRETERS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""Signals of which an interpreter may die while it shuts down."""


def finished(ended: Ended) -> Verdict | None:
    """Return success or an orderly stop, which the outcome records of every node prove.

    Without them, a job that Slurm calls COMPLETED is done if the store has its last step.
    """
    if len(ended.outcomes) < ended.nodes or any(o.launcher_exit is None for o in ended.outcomes):
        reached = ended.target_step is not None and (ended.known_last_step or 0) >= ended.target_step
        if ended.job is None or ended.job.state != "COMPLETED" or not reached:
            return None
        reason = "every step was reported and Slurm calls its job completed; not every node's outcome was readable"
        return Verdict(FailureClass.COMPLETED, reason, rule="slurm-state", sure=Sureness.LIKELY)
    exits = {rank.exit for o in ended.outcomes for rank in o.ranks}
    clean = exits == {0} and all(o.launcher_exit == 0 for o in ended.outcomes)
    interrupted = any(o.ended_by == "signal" for o in ended.outcomes)
    alone = alone_in_words(ended.group, len(ended.ranks))
    if exits == {0} and ended.reached:  # the interpreters and the launcher may fail afterwards
        return Verdict(FailureClass.COMPLETED, alone)
    if clean and not ended.steps_decide and not ended.stop_asked and not (interrupted and ended.short):
        at = f"at step {ended.step:,}"
        if ended.reached_before and not ended.step:
            at = f"and no step was read after {ended.reached_before:,}"
        reason = f"the script exited with 0 {at} of {ended.target_step:,}" if ended.short else alone
        return Verdict(FailureClass.COMPLETED_EARLY if ended.short else FailureClass.COMPLETED, reason)
    saved = EXIT_STOPPED in exits and exits <= {0, EXIT_STOPPED, None} and not any(rank.error for rank in ended.ranks)
    if saved or (exits == {0} and ended.stop_asked):
        return Verdict(FailureClass.STOPPED, f"stopped after a checkpoint at step {ended.step}")
    return _torn_down(ended)


def alone_in_words(group: int | None, ranks: int) -> str:
    """Return a sentence about ranks that formed no group of all; "" if they did, or nobody knows."""
    if group is None or group >= ranks or ranks < 2:
        return ""
    formed = f"the largest had {group}" if group > 1 else "each may have trained alone"
    return f"its {ranks} ranks never formed a group of {ranks}: {formed}"


def diverged(verdict: Verdict, ended: Ended) -> Verdict | None:
    """Return the verdict on an end in good order whose loss was no longer a number, None if it was.

    A single step may be an overflow that fp16 skips: before the end, two show that more steps lead nowhere. An attempt
    without an outcome, or that had nothing left to do, is judged by the losses in the store.
    """
    over = verdict.kind.policy.run is RunState.COMPLETED
    before = ended.diverged_before if over and not (ended.progressed and ended.outcomes) else None
    name, since = next((o.diverged_at for o in ended.outcomes if o.diverged_at), before or ("", 0))
    goes_on = verdict.kind in (FailureClass.STOPPED, FailureClass.TIME_LIMIT) and since < ended.step
    if not name or not (over or goes_on):
        return None
    hint = "lower the learning rate, or warm up longer"
    until = max(since, ended.step)
    proof = LogLine("metrics.jsonl", 0, f"{name} is not finite from step {since:,} to step {until:,}")
    reason = f"{name} is not finite since step {since:,}{'; this attempt made no further step' if before else ''}"
    return Verdict(FailureClass.DIVERGED, reason, hint, proof, "reported-loss")


def _torn_down(ended: Ended) -> Verdict | None:
    """All steps were made, and only the clean-up after them failed: a process group, a tracker, an interpreter."""
    ranks = ended.ranks
    if not ended.reached or not ranks or any(o.oom_kills for o in ended.outcomes):
        return None
    if len(ranks) > 1 and any(rank.exit != 0 and rank.group is not None and rank.group < len(ranks) for rank in ranks):
        return None  # a rank that met no other has made none of their steps
    errors = ended.errors
    left = any(rank.exit == 0 for rank in ranks)
    explained = left or errors or death_signal(ended) in _OF_INTERPRETERS
    had_work = any(rank.exit != 0 and rank.phase in _OUTCOME_PHASES for rank in ranks)
    if not explained or had_work or not all(_of_teardown(clue, left) for clue in errors):
        return None
    reason = f"step {ended.step} of {ended.target_step} was made; only the clean-up failed"
    return Verdict(FailureClass.COMPLETED, reason, rule="teardown", sure=Sureness.LIKELY)


def _of_teardown(clue: Clue, left: bool) -> bool:
    """Whether it concerns the clean-up or an upload alone: by its place, or an echo if others left in good order."""
    places_of_error = places(clue.raised.frames)
    if not _OF_RESULTS.isdisjoint(places_of_error) or errnos.FAULTS.get(clue.raised.errno or 0) in _MACHINE_FAULTS:
        return False
    if clue.raised.is_a("NetworkError") or not _OF_TEARDOWN.isdisjoint(places_of_error[:3]):
        return True
    return clue.is_cascade and (left or not places_of_error)
