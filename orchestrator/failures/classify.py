"""Evidence → failure class. Pure.

The earliest error over all ranks is the root cause: a rank that dies makes the others fail in their collectives, and
the launcher reports whichever it polls first. So the ranks' own records are asked before any log line, and Slurm's word
for the job only decides where Slurm is the one that ended it. What a rank says when another one has died (a cascade)
proves nothing while anything else does: the one that died may have left no record at all.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence

from dscampaign.jobs.agent.evidence import LogLine

from . import doubts, errnos, finish, node_evidence, words
from .devices import ASSERTION
from .evidence import (
    Clue,
    Ended,
    death_signal,
    first_to_die,
    gone_before,
    left_by_itself,
    outcome_of,
    silent_ranks,
)
from .exits import faulted, folder_restored, how_it_died, never_began, refused, set_up, unknown
from .groups import gist
from .kinds import UNREADABLE_INPUT, diagnosis_of, final_at_once, kind_of, match, scene
from .log_lines import echoes_input, ends_a_program
from .places import Place, places
from .policy import FailureClass
from .raised import OF_FILES, OF_PROGRAM
from .rules import LOG_RULES, USER_ACTIONS, Rule, gave_up_waiting
from .slurm_word import ended_by_slurm
from .verdict import Diagnosis, Sureness, Verdict, headline

_ULIMIT = {"RLIMIT_AS": "-v", "RLIMIT_DATA": "-d"}


def classify(ended: Ended) -> Verdict:
    """The failure class of an ended attempt, with the proof and how sure it is."""
    verdict = _class_of(ended)
    return doubts.doubted(finish.diverged(verdict, ended) or verdict, ended)


def _class_of(ended: Ended) -> Verdict:
    return (
        folder_restored(ended)
        or finish.finished(ended)
        or ended_by_slurm(ended)
        or _by_user_rule(ended)
        or set_up(ended)
        or refused(ended)
        or _by_root(ended)
        or node_evidence.bad_gpu(ended)
        or _at_time_limit(ended)
        or _out_of_memory(ended)
        or node_evidence.ambiguous_gpu(ended)
        or node_evidence.storage(ended)
        or _by_log(ended)
        or _by_last_words(ended)
        or _by_log(ended, echoes=True)
        or _by_prose(ended)
        or never_began(ended)
        or _cascade(ended)
        or unknown(ended)
    )


# -- what Slurm decides ---------------------------------------------------------------------------------------


def _at_time_limit(ended: Ended) -> Verdict | None:
    job = ended.job
    if job is None or job.state not in ("TIMEOUT", "DEADLINE"):
        return None
    clues = ended.log_clues  # a watchdog may only have said so, while the ranks went on waiting
    if hung := next((clue for clue in clues if gave_up_waiting(clue.text)), None):
        return _hang(hung)
    if hung := next((clue for clue in clues if words.reports_waiting(clue.text)), None):
        return _hang(hung, Sureness.LIKELY)
    if hung_before := _hung_in_a_collective(ended.errors, ended):
        return hung_before
    proof = LogLine("slurm", 0, job.state)
    limit = "its deadline" if job.state == "DEADLINE" else "Slurm's time limit"
    return Verdict(FailureClass.TIME_LIMIT, f"reached {limit}", "", proof, "slurm-state")


# -- errors ---------------------------------------------------------------------------------------------------


def _by_user_rule(ended: Ended) -> Verdict | None:
    clues = [*ended.errors, *_all_lines(ended)] if ended.user_rules else []
    for rule in ended.user_rules:
        for clue in clues:
            if rule.pattern.search(clue.text):
                kind = USER_ACTIONS[rule.action]
                name = f"user: {rule.pattern.pattern}"
                return Verdict(kind, headline(clue.text), rule.hint, clue.line, name, clue.host)
    return None


def _all_lines(ended: Ended) -> list[Clue]:
    """What the user's own rules are matched with: every line that is kept, except repeated configurations."""
    lines = [Clue(line, o.host) for o in ended.outcomes for line in o.lines]
    lines += [Clue(line) for line in ended.agent_lines]
    return [clue for clue in lines if not echoes_input(clue.text)]


def _by_root(ended: Ended) -> Verdict | None:
    """The root error, if a rank recorded one."""
    roots = ended.roots
    if not roots:
        return None
    root = roots[0]
    found, text = diagnosis_of(root, ended)
    if found and found.kind is FailureClass.CHECKPOINT and not ended.trained and ended.steps_decide:
        found = UNREADABLE_INPUT
    suspect = node_evidence.concerns_gpu(text) or (found is not None and found.kind is FailureClass.DIVERGED)
    if suspect and not node_evidence.without_gpus(found, ended):
        broken = node_evidence.bad_gpu(ended) or (None if found else node_evidence.ambiguous_gpu(ended))
        if broken:
            return broken
    if found is None:
        return _not_finite_before(root, ended) or _out_of_memory(ended) or _unknown_error(root)
    if found.kind is FailureClass.DETERMINISTIC:
        return _mistake(found, root, roots, ended)
    if found.kind is FailureClass.CRASH and (memory := _out_of_memory(ended)):
        return memory
    return _proved(found, root, text, ended)


def _unknown_error(root: Clue) -> Verdict:
    place = "" if words.of_circumstances(root.text) else _place(root)
    return Verdict(FailureClass.CRASH, headline(root.text), line=root.line, host=root.host, place=place)


def _place(clue: Clue) -> str:
    """The place of an error, by which another attempt shows that it recurs; without frames, a program's own words."""
    return clue.raised.place or (_words(clue) if clue.raised.is_a(*OF_PROGRAM, *OF_FILES) else "")


def _words(clue: Clue) -> str:
    return f"{clue.raised.type} {gist(clue.raised.message)}"


def _not_finite_before(root: Clue, ended: Ended) -> Verdict | None:
    if not ended.trained or not ASSERTION.search(root.text):
        return None
    lines = (line for outcome in ended.outcomes for line in outcome.lines)
    proof = next((line for line in lines if words.NAN_STEP.search(line.text)), None)
    if proof is None:
        return None
    hint = "lower train.lr, or warm up longer"
    return Verdict(
        FailureClass.DIVERGED, headline(proof.text), hint, proof, "loss-not-finite", root.host, Sureness.LIKELY
    )


def _mistake(found: Diagnosis, root: Clue, roots: Sequence[Clue], ended: Ended) -> Verdict:
    """A mistake, unless the node or a rank that died earlier explains it; a likely one takes a second witness."""
    gone = gone_before(ended, root.ts) if root.ts is not None else None
    if gone:
        reason = f"{headline(root.text)} (rank {gone.rank} had ended before, without a record)"
        return Verdict(FailureClass.CRASH, reason, line=root.line, host=root.host, sure=Sureness.LIKELY)
    if words.DEVICE_MEMORY.search(root.text) and (crowded := node_evidence.crowded(root, ended)):
        kind, reason = crowded
        return Verdict(kind, reason, line=root.line, host=root.host, rule="device-memory", sure=Sureness.LIKELY)
    alike = [clue for clue in roots if _same(clue, root)]
    place = _place(root) if ended.begun else ""
    if _on_one_node_only(found, root, alike, ended):
        reason = f"only on {root.host}: {headline(root.text)}"
        return Verdict(
            FailureClass.NODE, reason, found.hint, root.line, found.name, root.host, Sureness.LIKELY,
            place=place, suspect=found.kind,
        )  # fmt: skip
    if found.sure is Sureness.CERTAIN or _witnessed(found, root, alike, ended):
        return _proved(found, root, root.text, ended)
    return Verdict(
        FailureClass.CRASH, headline(root.text), found.hint, root.line, found.name, root.host, Sureness.UNSURE,
        place=place, suspect=found.kind,
    )  # fmt: skip


def _same(one: Clue, other: Clue) -> bool:
    if one.raised.type != other.raised.type:
        return False
    return one.raised.place == other.raised.place and (bool(one.raised.place) or _words(one) == _words(other))


def _witnessed(found: Diagnosis, root: Clue, alike: Sequence[Clue], ended: Ended) -> bool:
    hosts = {clue.host for clue in alike}
    if len({(clue.host, clue.rank) for clue in alike}) < 2 or len(hosts) < len(ended.outcomes):
        return False
    return final_at_once(found, scene(root.raised, ended), len(hosts))


def _on_one_node_only(found: Diagnosis, root: Clue, alike: Sequence[Clue], ended: Ended) -> bool:
    """Whether the node is to blame: others had no such error, or earlier attempts had none.

    What rank 0 alone does (reading a file for all) fails on its node only, and on every node that it will ever have:
    another rank beside it that got further acquits the node. Of logs it is not known how far others got.
    """
    if ended.resumes:
        return found.environment  # it has trained before
    if ended.nodes < 2 or len(ended.outcomes) < 2 or not root.host or any(clue.host != root.host for clue in alike):
        return False
    if any(clue.rank != 0 for clue in alike):
        return True
    beside = outcome_of(ended, root.host)
    others = [rank for rank in beside.ranks if rank.rank != root.rank and rank.exit is not None] if beside else []
    return root.ts is not None and not others and found.sure is not Sureness.CERTAIN


def _by_log(ended: Ended, *, echoes: bool = False) -> Verdict | None:
    """The verdict from the words of the logs, if no rank recorded an error: of errors, or of echoes of another's."""
    for clue in ended.log_clues:
        if clue.is_cascade is not echoes:
            continue
        if gave_up_waiting(clue.text):
            return _hang(clue)
        rule = match(clue.text, ended, LOG_RULES)
        if rule is None and (full := errnos.in_other_words(clue.text)):
            return Verdict(FailureClass.STORAGE, headline(clue.text), "", clue.line, f"errno-{full}", clue.host)
        if rule and not (rule.kind is FailureClass.DETERMINISTIC and _no_mistake(rule, clue, ended)):
            return _told(rule, clue, clue.text, ended)
    return None


def _by_last_words(ended: Ended) -> Verdict | None:
    ends = [clue for clue in ended.log_clues if ends_a_program(clue.text) and not clue.is_cascade]
    last = {(clue.host, clue.line.file, clue.rank): clue for clue in ends}
    for clue in last.values():
        found, text = diagnosis_of(clue, ended)
        if found and (found.kind is not FailureClass.DETERMINISTIC or _signal_of_its_own(clue, ended) is None):
            return _told(found, clue, text, ended)
    return None


def _by_prose(ended: Ended) -> Verdict | None:
    broke_off = ended.trained and left_by_itself(ended)
    for clue in ended.log_clues:
        if broke_off and words.reports_divergence(clue.text):
            return Verdict(
                FailureClass.DIVERGED, headline(clue.text), "lower train.lr, or warm up longer", clue.line,
                "loss-not-finite", clue.host, sure=Sureness.LIKELY,
            )  # fmt: skip
        if words.reports_waiting(clue.text):
            return _hang(clue, Sureness.LIKELY)
    return None


def _told(found: Diagnosis, clue: Clue, text: str, ended: Ended) -> Verdict:
    """What a line of a log proves; of a mistake, as a rank's own record would."""
    if found.kind is FailureClass.DETERMINISTIC:
        return _mistake(found, clue, ended.log_clues, ended)
    return _proved(found, clue, text, ended)


def _no_mistake(rule: Rule, clue: Clue, ended: Ended) -> bool:
    """Whether the line cannot be what ended it: not a program's last word, or a signal was.

    An exception of Python's, which a log may show, leaves an exit code of its own.
    """
    if rule.aborts:
        return False
    return not ends_a_program(clue.text) or _signal_of_its_own(clue, ended) is not None


def _signal_of_its_own(clue: Clue, ended: Ended) -> int | None:
    """The signal that ended it; not that with which the watchdog of another rank, which had waited, ended that one."""
    number = death_signal(ended)
    others = (other for other in ended.log_clues if other.line.file != clue.line.file or other.rank != clue.rank)
    if number == signal.SIGABRT and any(gave_up_waiting(other.text) for other in others):
        return None
    return number


def _cascade(ended: Ended) -> Verdict | None:
    """What the survivors said, and who left no record: the launcher's victims are among those, and so is the cause."""
    echoes = ended.errors
    if not echoes:
        return None
    first = echoes[0]
    if death_signal(ended) in (None, signal.SIGABRT) and (hung := _hung_in_a_collective(echoes, ended)):
        return hung
    if fault := faulted(ended):
        return fault
    for clue in echoes:
        passing = match(clue.text, ended)
        if passing and passing.kind in (FailureClass.CRASH, FailureClass.NODE):
            return _proved(passing, clue, clue.text, ended)
    name, host = first_to_die(ended) if silent_ranks(ended) else ("", "")
    cause = f"{name} {how_it_died(ended)}; then " if name else ""
    reason = cause + headline(first.text)
    return Verdict(FailureClass.CRASH, reason, line=first.line, host=host, sure=Sureness.UNSURE)


def _hung_in_a_collective(echoes: Sequence[Clue], ended: Ended) -> Verdict | None:
    alike = {clue.raised.place or clue.text: clue for clue in reversed(echoes)}
    for clue in reversed(alike.values()):
        if gave_up_waiting(clue.text):
            return _hang(clue)
        found = kind_of(scene(clue.raised, ended))
        if found and found.kind in (FailureClass.HANG, FailureClass.NODE):
            return Verdict(found.kind, headline(clue.text), "", clue.line, found.name, sure=found.sure)
    return None


def _hang(clue: Clue, sure: Sureness = Sureness.CERTAIN) -> Verdict:
    return Verdict(FailureClass.HANG, headline(clue.text), "", clue.line, "collective", sure=sure)


def _proved(rule: Diagnosis, clue: Clue, text: str, ended: Ended) -> Verdict:
    if rule.kind is FailureClass.HOST_OOM:
        return _memory(ended, clue, text, rule.name, rule.hint)
    if rule.kind is FailureClass.OOM:
        if not node_evidence.has_numbers(text) and (pinned := _pinned(clue, ended)):
            proof, name = pinned
            return _memory(ended, proof, text, name)
        kind, reason, hint = node_evidence.whose_memory(ended, clue, text)
        return Verdict(kind, reason or headline(text), hint, clue.line, rule.name, clue.host)
    host = _named(rule, text) if rule.kind is FailureClass.NODE and not getattr(rule, "here", False) else clue.host
    return Verdict(rule.kind, headline(text), rule.hint, clue.line, rule.name, host, sure=rule.sure)


def _named(found: Diagnosis, text: str) -> str:
    """The node that an error names, whose it is; who says it has lost another, and is in order itself."""
    said = found.pattern.search(text) if isinstance(found, Rule) else None
    return (said.groupdict().get("host") if said else None) or ""


# -- the machine ----------------------------------------------------------------------------------------------


def _out_of_memory(ended: Ended) -> Verdict | None:
    if found := node_evidence.host_memory(ended):
        clue, name = found
        return _memory(ended, clue, clue.text, name)
    return None


def _pinned(clue: Clue, ended: Ended) -> tuple[Clue, str] | None:
    """The proof that memory which CUDA pins ran out, which is the host's; the proof and its rule."""
    if Place.PINNING in places(clue.raised.frames)[:2] or ".pin_memory(" in clue.raised.statement:
        return clue, "pinned-memory"
    return node_evidence.host_memory(ended)


def _memory(ended: Ended, clue: Clue, text: str, name: str, hint: str = "") -> Verdict:
    """Out of host memory. If the ranks train on the CPU, a smaller micro-batch may help; else it does not."""
    if limit := _process_limit(ended, clue):
        option, size = limit
        reason = f"the process's own limit of {size / 2**30:.3g} GiB, as `ulimit {option}` sets it, was reached"
        raise_it = f"`ulimit {option} unlimited` in the shell that submits, or ask who sets it for the cluster"
        kind = FailureClass.OOM if ended.on_cpu and ended.resizable else FailureClass.DETERMINISTIC
        return Verdict(kind, reason, raise_it, clue.line, "process-limit", clue.host)
    if ended.on_cpu and ended.resizable:
        return Verdict(FailureClass.OOM, "out of memory: " + headline(text), "", clue.line, name, clue.host)
    return Verdict(
        FailureClass.HOST_OOM, "the node's memory ran out", hint or _more_memory(ended), clue.line, name, clue.host
    )


def _process_limit(ended: Ended, clue: Clue) -> tuple[str, float] | None:
    """The option of `ulimit` and the bytes of the limit that a rank may have reached; no kernel kills for that one."""
    if any(outcome.oom_kills for outcome in ended.outcomes):
        return None
    node = outcome_of(ended, clue.host)
    most = (node and node.memory_limit_bytes) or math.inf
    limits = [(name, size) for rank in ended.ranks if clue.rank in (None, rank.rank) for name, size in rank.limits]
    name, size = min(limits, key=lambda limit: limit[1], default=("", most))
    return (_ULIMIT.get(name, name), size) if size < most else None


def _more_memory(ended: Ended) -> str:
    field, asked = ended.host_memory
    used = max((o.memory_peak_bytes or 0 for o in ended.outcomes), default=0)
    facts = [f"asked {asked}"] if asked else []
    facts += [f"used {used / 2**20:,.0f}M"] if used else []
    return f"{'raise' if asked else 'set'} {field}" + (f" ({', '.join(facts)})" if facts else "")
