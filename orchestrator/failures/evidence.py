"""The evidence about an ended attempt, and the order in which its ranks died. Facts only, pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd
from dscampaign.jobs.shared.user_pattern import UserPattern
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.executors.setup_lines import SetUpFailure

from .clues import Clue, clues
from .raised import MESSAGE_LIMIT, Frame, Place, places, telling

SIGNAL_SLACK_S = 1.0
"""Slurm's SIGTERM reaches agent and ranks at once: an error may be a moment older than the agent's note of it."""

KILL_WAIT_S = 30.0
"""Slurm's default time between SIGTERM at the time limit and SIGKILL."""

GROUP = "group"
"""Where an attempt's evidence keeps how many ranks its largest group had."""

SOFTWARE = "software"
"""Where an attempt's evidence keeps the versions of the libraries that its first rank had loaded."""

_FATAL = "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV", "SIGTERM"
DEADLY = {256 - signal.Signals[name]: int(signal.Signals[name]) for name in _FATAL}
"""The `deepspeed` launcher's exit code -> the signal that killed the rank that it saw first. A launcher that is ended
itself leaves with 1, or with the code of a rank that had failed before."""


@dataclass(frozen=True)
class UserRule:
    """A rule of the user's own, tried before the table; its action is a key of `USER_ACTIONS`."""

    pattern: UserPattern | re.Pattern[str]
    action: str
    hint: str = ""


@dataclass(frozen=True)
class Ended:
    """All evidence about an ended attempt.

    Attributes:
        target_step: The step at which the run is complete, None if only its script knows.
        steps_decide: Whether exit 0 before the target step is not success.
        on_cpu: Whether the ranks' device memory is the host's.
        agent_lines: The agents' own log, if no agent left an outcome.
        known_start_step, known_last_step: The store's, for an attempt that left no outcome.
        resizable: Whether ranks on the CPU can be tried with a smaller micro-batch.
        host_memory: The field of the spec that limits the host's memory, and its value, "" for no limit.
        diverged_before: The loss that was not finite at the end of the attempts before it, and the step since when.
        set_up: The line of `setup` that failed, if no agent left an outcome.
        reached_before: The highest step that earlier attempts may have made, known if this attempt reported none.
        claimed: Whether a job had begun to run it.
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
    user_rules: Sequence[UserRule] = ()
    resizable: bool = True
    host_memory: tuple[str, str] = ("slurm.mem", "")
    diverged_before: tuple[str, int] | None = None
    started_again: bool = False
    set_up: SetUpFailure | None = None
    reached_before: int = 0
    claimed: bool = False

    @cached_property
    def last_step(self) -> int | None:
        """The newest step that was reported."""
        reported = [o.last_step for o in self.outcomes] + [self.known_last_step]
        return max((step for step in reported if step is not None), default=None)

    @cached_property
    def start_step(self) -> int:
        """The step it started from."""
        return max((o.start_step for o in self.outcomes), default=self.known_start_step or 0)

    @cached_property
    def step(self) -> int:
        """The last step of the run: an attempt that resumes at the target step reports none of its own."""
        return max(self.last_step or 0, self.start_step)

    @property
    def progressed(self) -> bool:
        """Whether at least one optimizer step was made."""
        return self.last_step is not None and self.last_step > self.start_step

    @property
    def trained(self) -> bool:
        """Whether this experiment has ever made a step, which proves that its configuration works."""
        return self.step > 0

    @cached_property
    def begun(self) -> bool:
        """Whether a rank may have started: a failure before the user's code runs is the machine's or this program's.

        A rank records that it runs before it runs anything of the user's. An agent that claimed the attempt and left no
        outcome may have launched ranks.
        """
        if not self.outcomes:
            return self.claimed or self.last_step is not None
        return self.last_step is not None or any(rank.pid is not None or rank.exit is not None for rank in self.ranks)

    @property
    def resumes(self) -> bool:
        """Whether earlier attempts have trained, and this attempt made no step."""
        return self.trained and not self.progressed

    @property
    def reached(self) -> bool:
        """Whether the target step was reached."""
        return self.target_step is not None and self.step >= self.target_step

    @cached_property
    def short(self) -> bool:
        """Whether it surely ended before the target step; unknown of a script that reports no steps."""
        reached = max((o.step_reached or 0 for o in self.outcomes), default=0)
        return self.target_step is not None and 0 < (max(self.step, reached) or self.reached_before) < self.target_step

    @cached_property
    def ranks(self) -> tuple[RankEnd, ...]:
        """The ranks of all nodes that left an outcome."""
        return tuple(rank for outcome in self.outcomes for rank in outcome.ranks)

    @property
    def group(self) -> int | None:
        """The size of the largest group that was formed; None if that is not known of all ranks."""
        groups = [rank.group for rank in self.ranks]
        present = [group for group in groups if group is not None]
        return max(present, default=None) if len(present) == len(groups) else None

    @cached_property
    def errors(self) -> tuple[Clue, ...]:
        """Errors that ranks recorded, earliest first, without errors from being ended."""
        clues = (
            Clue(
                LogLine(f"ranks/rank-{rank.rank}.json", 0, f"{error['type']}: {error['message'][:MESSAGE_LIMIT]}"),
                *(outcome.host, rank.rank, error["ts"], error),
            )
            for outcome in self.outcomes
            for rank in outcome.ranks
            if (error := rank.error) and not _answers_the_end(error["ts"], outcome, self.job)
        )
        return tuple(sorted(clues, key=lambda clue: (clue.ts or 0.0, clue.rank or 0)))

    @cached_property
    def roots(self) -> tuple[Clue, ...]:
        """The errors that are not consequences of another rank's death."""
        return tuple(clue for clue in self.errors if not clue.is_cascade and not clue.is_garbled)

    @cached_property
    def log_clues(self) -> tuple[Clue, ...]:
        """Lines of logs that may decide, the nodes' first, cascades last."""
        of_nodes = [clue for o in self.outcomes for clue in clues(o.lines, o.host)]
        shown = (clue for clue in [*of_nodes, *clues(self.agent_lines)] if not clue.is_garbled)
        return tuple(sorted(shown, key=lambda clue: clue.is_cascade))

    @property
    def stop_asked(self) -> bool:
        """Whether some node was asked to save a checkpoint and exit."""
        return any(o.ended_by == "stop" for o in self.outcomes)


def frames_of(line: LogLine | None, ended: Ended) -> tuple[Frame, ...]:
    """Return the frames that matter of the exception whose record proves a verdict; none for any other proof."""
    clue = next((clue for clue in ended.errors if line and clue.line.file == line.file), None)
    stacks = [raised.frames for raised in (clue.raised, *clue.causes)] if clue else [()]
    return telling(next((frames for frames in stacks if Place.USER in places(frames)), stacks[0]))


def silent_ranks(ended: Ended) -> list[tuple[RankEnd, NodeOutcome]]:
    """Return the ranks that left no record of an end, in the order in which their processes went."""
    ranks = ((rank, o) for o in ended.outcomes for rank in o.ranks if rank.exit is None)
    return sorted(ranks, key=lambda pair: (pair[0].gone_s or float("inf"), pair[0].rank))


def first_to_die(ended: Ended) -> tuple[str, str]:
    """Return the rank that died first without a record, as text, and its node; "" if several ranks are possible."""
    first = [(rank.rank, o.host) for rank, o in _first_dead(ended)]
    hosts = {host for _, host in first}
    several = f"ranks {', '.join(str(rank) for rank, _ in first)}" if len(first) <= 8 else f"{len(first)} ranks"
    name = f"rank {first[0][0]}" if len(first) == 1 else f"one of {several}"
    return name, hosts.pop() if len(hosts) == 1 else ""


def _first_dead(ended: Ended) -> list[tuple[RankEnd, NodeOutcome]]:
    silent = silent_ranks(ended)
    return [pair for pair in silent if pair[0].gone_s == silent[0][0].gone_s]


def rank_exits(ended: Ended) -> dict[int, int | None]:
    """Return each rank's exit code: minus its signal if a signal killed it first, None without a record."""
    first, number = _first_dead(ended), death_signal(ended)
    exits = {rank.rank: rank.exit for rank in ended.ranks}
    if number is not None and len(first) == 1 and first[0][1].launcher_exit == 256 - number:
        exits[first[0][0].rank] = -number
    return exits


def death_signal(ended: Ended) -> int | None:
    """Return the signal that killed a rank, or a launcher, before anybody ended it; None if none did."""
    own = (o for o in ended.outcomes if o.ended_by in ("", "stop") and not _was_ending(o))
    codes = (o.launcher_exit for o in own if o.launcher_exit is not None)
    return next((DEADLY.get(code, -code) for code in codes if code in DEADLY or code < 0), None)


def _was_ending(outcome: NodeOutcome) -> bool:
    until_s = outcome.ending_s
    return until_s is not None and not any(r.gone_s is not None and r.gone_s < until_s for r in outcome.ranks)


def outcome_of(ended: Ended, host: str) -> NodeOutcome | None:
    """Return that node's outcome."""
    return next((o for o in ended.outcomes if o.host == host), None)


def _answers_the_end(ts: float, outcome: NodeOutcome, job: JobView | None) -> bool:
    if outcome.ending_s is None:
        at_limit = job is not None and job.state in ("TIMEOUT", "DEADLINE")
        return at_limit and ts >= outcome.ended_s - KILL_WAIT_S
    slack_s = SIGNAL_SLACK_S if outcome.ended_by == "signal" else 0.0
    return ts >= outcome.ending_s - slack_s
