"""Evidence → failure class. Pure.

The earliest error over all ranks is the root cause: a rank that dies makes the others fail in their collectives. So the
ranks' own records come before any log line, and Slurm's state only decides if Slurm ended the job. The complaint of a
rank after another has died (a cascade) proves nothing beside any other evidence.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from dscampaign.jobs.agent.evidence import LogLine

from . import devices, exits, node_evidence
from .clues import Clue, echoes_input, ends_a_program
from .evidence import Ended, death_signal, first_to_die, outcome_of, silent_ranks
from .groups import gist
from .policy import FailureClass
from .raised import Raised
from .rules import LOG_RULES, RULES, UNKNOWN, USER_ACTIONS, Rule, first, gave_up_waiting
from .scene import Scene, reports_divergence, reports_waiting
from .verdict import Sureness, Verdict, headline

_ELSEWHERE = re.compile(r"root cause above|\b(?:worker|process|engine|actor)\w*\b.{0,60}\b(?:died|dead|exited|failed)")
"""The failure of another process, which a rank had started: only the log of that process may show why."""


def classify(ended: Ended) -> Verdict:
    """Return the failure class of an ended attempt, with the proof and how sure it is."""
    verdict = next(verdict for question in _QUESTIONS if (verdict := question(ended)))
    verdict = exits.diverged(verdict, ended) or verdict
    guess = verdict.kind is FailureClass.GPU_FAULT or (verdict.kind is FailureClass.CRASH and not verdict.rule)
    return replace(verdict, sure=Sureness.UNSURE) if guess else verdict


# -- records of ranks -----------------------------------------------------------------------------------------


def _by_root(ended: Ended) -> Verdict | None:
    """The root error, if a rank recorded one."""
    if not ended.roots:
        return None
    root = ended.roots[0]
    rule, text = _cause(root, ended)
    if rule and rule.kind is FailureClass.CHECKPOINT and not ended.trained and ended.steps_decide:
        rule = None  # it has no checkpoint of its own yet: its input
    speaks_of_gpus = devices.NAMED.search(text) or (rule and rule.kind is FailureClass.DIVERGED)
    if speaks_of_gpus and (broken := node_evidence.bad_gpu(ended)):
        return broken
    if rule in (None, UNKNOWN) or (rule and rule.kind is FailureClass.CRASH):
        elsewhere = _by_log(ended) if _ELSEWHERE.search(text) else None
        if better := node_evidence.out_of_memory(ended) or elsewhere:
            return better
    return _verdict(rule or UNKNOWN, root, text, ended.roots, ended)


def _cause(clue: Clue, ended: Ended) -> tuple[Rule | None, str]:
    """A cause that passes comes first, also if it only led to a mistake: without it there would have been none."""
    rule = _judged(clue.raised, clue.text, ended)
    if rule and not rule.mistake and rule.sure is Sureness.CERTAIN:
        return rule, clue.text
    causes = [(earlier, cause.text) for cause in clue.causes if (earlier := _judged(cause, cause.text, ended))]
    for earlier, text in causes:
        if not earlier.mistake:
            return earlier, text
    if causes and rule in (None, UNKNOWN):
        return causes[-1]
    return rule, clue.text


def _judged(raised: Raised, text: str, ended: Ended, rules: tuple[Rule, ...] = RULES) -> Rule | None:
    return first(Scene(raised, ended.trained, ended.resumes), text, rules)


def _place(clue: Clue) -> str:
    """The place of an error, or without frames its text, by which another attempt shows that it recurs."""
    return clue.raised.place or f"{clue.raised.type} {gist(clue.raised.message)}"


def _verdict(rule: Rule, clue: Clue, text: str, clues: Sequence[Clue], ended: Ended) -> Verdict:
    if rule.mistake:
        return _mistake(rule, clue, clues, ended)
    if rule.kind in (FailureClass.OOM, FailureClass.HOST_OOM):
        return node_evidence.memory_ran_out(rule, clue, text, ended)
    host = clue.host
    if rule.kind is FailureClass.HANG:  # the others are to blame
        host = ""
    if rule.kind is FailureClass.NODE and not rule.here:  # the node that the text names, if any: the other is in order
        match = rule.text.search(text) if rule.text else None
        host = (match.groupdict().get("host") if match else None) or ""
    return clue.verdict(rule.kind, rule.name, headline(text), rule.hint, host=host, sure=rule.sure)


# -- mistakes -------------------------------------------------------------------------------------------------


def _mistake(rule: Rule, root: Clue, clues: Sequence[Clue], ended: Ended) -> Verdict:
    """A mistake, unless the node explains it; an uncertain mistake takes another attempt."""
    place = _place(root) if ended.begun else root.raised.place  # the launcher read something of the user's
    if _on_one_node_only(rule, root, [clue for clue in clues if _place(clue) == _place(root)], ended):
        reason = f"only on {root.host}: {headline(root.text)}"
        return root.verdict(FailureClass.NODE, rule.name, reason, rule.hint, sure=Sureness.LIKELY, place=place)
    if rule.sure is Sureness.CERTAIN:
        return root.verdict(rule.kind, rule.name, hint=rule.hint)
    return root.verdict(FailureClass.CRASH, rule.name, hint=rule.hint, sure=Sureness.UNSURE, place=place)


def _on_one_node_only(rule: Rule, root: Clue, alike: Sequence[Clue], ended: Ended) -> bool:
    # Work that rank 0 alone does (reading a file for all) fails on its node only, and on every node that it will ever
    # have: another rank beside it that got further acquits the node. Logs do not show how far others got.
    if ended.resumes:
        return rule.environment or root.raised.is_a("ImportError")  # it has trained before
    if ended.progressed and rule.sure is not Sureness.CERTAIN:
        return False
    if ended.nodes < 2 or len(ended.outcomes) < 2 or not root.host or any(clue.host != root.host for clue in alike):
        return False
    if any(clue.rank != 0 for clue in alike):
        return True
    beside = outcome_of(ended, root.host)
    others = [rank for rank in beside.ranks if rank.rank != root.rank and rank.exit is not None] if beside else []
    return root.ts is not None and not others and rule.sure is not Sureness.CERTAIN


# -- logs -----------------------------------------------------------------------------------------------------


def _by_user_rule(ended: Ended) -> Verdict | None:
    if not ended.user_rules:
        return None
    lines = [Clue(line, o.host) for o in ended.outcomes for line in o.lines] + [Clue(x) for x in ended.agent_lines]
    clues = [*ended.errors, *(clue for clue in lines if not echoes_input(clue.text))]
    for rule in ended.user_rules:
        for clue in clues:
            if rule.pattern.search(clue.text):
                return clue.verdict(USER_ACTIONS[rule.action], f"user: {rule.pattern.pattern}", hint=rule.hint)
    return None


def _by_log(ended: Ended) -> Verdict | None:
    """The verdict from lines that prove something wherever they stand."""
    for clue in ended.log_clues:
        rule = None if clue.is_cascade else _judged(clue.raised, clue.text, ended, LOG_RULES)
        if rule is None:
            continue
        # a Python exception, which a log may show, leaves an exit code of its own
        ended_it = ends_a_program(clue.text) and _signal_of_its_own(clue, ended) is None
        if not rule.mistake or rule.aborts or ended_it:
            return _verdict(rule, clue, clue.text, ended.log_clues, ended)
    return None


def _by_last_words(ended: Ended) -> Verdict | None:
    ends = [clue for clue in ended.log_clues if ends_a_program(clue.text) and not clue.is_cascade]
    last = {(clue.host, clue.line.file, clue.rank): clue for clue in ends}
    for clue in last.values():
        rule, text = _cause(clue, ended)
        if rule is None and Scene(clue.raised, ended.trained).of_a_program:
            rule = UNKNOWN
        if rule and not (rule.mistake and _signal_of_its_own(clue, ended)):
            return _verdict(rule, clue, text, ended.log_clues, ended)
    return None


def _by_prose(ended: Ended) -> Verdict | None:
    broke_off = ended.trained and any(rank.exit and not rank.error for rank in ended.ranks)
    for clue in ended.log_clues:
        rule = _judged(clue.raised, clue.text, ended, LOG_RULES) if clue.is_cascade else None
        if rule and rule.kind is FailureClass.NODE:  # it explains why the others waited
            return _verdict(rule, clue, clue.text, ended.log_clues, ended)
        if broke_off and reports_divergence(clue.text):
            hint = "lower train.lr, or warm up longer"
            return clue.verdict(FailureClass.DIVERGED, "loss-not-finite", hint=hint, sure=Sureness.LIKELY)
        if gave_up_waiting(clue.text):
            return _hang(clue)
        if reports_waiting(clue.text):
            return _hang(clue, Sureness.LIKELY)
    return None


def _signal_of_its_own(clue: Clue, ended: Ended) -> int | None:
    """The signal that ended it; without the signal by which the watchdog of a waiting rank ended its own rank."""
    number = death_signal(ended)
    others = (other for other in ended.log_clues if other.line.file != clue.line.file or other.rank != clue.rank)
    if number == signal.SIGABRT and any(gave_up_waiting(other.text) for other in others):
        return None
    return number


# -- echoes, hangs and the time limit -------------------------------------------------------------------------


def _at_time_limit(ended: Ended) -> Verdict | None:
    job = ended.job
    if job is None or job.state not in ("TIMEOUT", "DEADLINE"):
        return None
    clues = ended.log_clues  # a watchdog may only have reported it, while the ranks went on waiting
    if hung := next((clue for clue in clues if gave_up_waiting(clue.text)), None):
        return _hang(hung)
    if hung := next((clue for clue in clues if reports_waiting(clue.text)), None):
        return _hang(hung, Sureness.LIKELY)
    if hung_before := _hung_in_a_collective(ended.errors, ended):
        return hung_before
    limit = "its deadline" if job.state == "DEADLINE" else "Slurm's time limit"
    return Clue(LogLine("slurm", 0, job.state)).verdict(FailureClass.TIME_LIMIT, "slurm-state", f"reached {limit}")


def _cascade(ended: Ended) -> Verdict | None:
    """The messages of the survivors, and the ranks that left no record: the launcher's victims, and so the cause."""
    echoes = ended.errors
    if not echoes:
        return None
    if death_signal(ended) in (None, signal.SIGABRT) and (hung := _hung_in_a_collective(echoes, ended)):
        return hung
    if fault := exits.faulted(ended):
        return fault
    for clue in echoes:
        rule = _judged(clue.raised, clue.text, ended, LOG_RULES)
        if rule and rule.kind in (FailureClass.CRASH, FailureClass.NODE):
            return _verdict(rule, clue, clue.text, echoes, ended)
    name, host = first_to_die(ended) if silent_ranks(ended) else ("", "")
    cause = f"{name} {exits.how_it_died(ended)}; then " if name else ""
    reason = cause + headline(echoes[0].text)
    return echoes[0].verdict(FailureClass.CRASH, reason=reason, host=host, sure=Sureness.UNSURE)


def _hung_in_a_collective(echoes: Sequence[Clue], ended: Ended) -> Verdict | None:
    alike = {clue.raised.place or clue.text: clue for clue in reversed(echoes)}
    for clue in reversed(alike.values()):
        if gave_up_waiting(clue.text):
            return _hang(clue)
        rule = _judged(clue.raised, clue.text, ended)
        if rule and rule.kind is FailureClass.HANG:
            return _hang(clue, rule.sure)
    return None


def _hang(clue: Clue, sure: Sureness = Sureness.CERTAIN) -> Verdict:
    return clue.verdict(FailureClass.HANG, "collective", host="", sure=sure)


_QUESTIONS: Sequence[Callable[[Ended], Verdict | None]] = (
    exits.finished,
    exits.ended_by_slurm,
    _by_user_rule,
    exits.set_up,
    exits.refused,
    exits.no_container,
    _by_root,
    node_evidence.bad_gpu,
    _at_time_limit,
    node_evidence.out_of_memory,
    node_evidence.storage,
    _by_log,
    _by_last_words,
    _by_prose,
    exits.never_began,
    _cascade,
    exits.unknown,
)
"""The first that has an answer decides."""
