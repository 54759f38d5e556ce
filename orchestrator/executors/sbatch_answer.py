"""The answer of sbatch: the id of the submitted job, or why there is none. Pure.

Banners, notes of plugins and errors that sbatch got over come before the line that decides: one line is judged.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import Final

from dscampaign.orchestrator.errors import Unreachable

from .base import ArrayTooLarge, SubmissionRefused, SubmissionUnclear

_JOB_ID = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?[ \t\r]*$", re.MULTILINE)
"""A whole line: of `--parsable`, or of a wrapper that drops this option. A banner may well mention some job."""

_DECISIVE = re.compile(r"^.*\b(?:submission failed|allocation failure): (.*?)[ \t\r]*$", re.MULTILINE)
"""The controller's own answer, or that it gave none: the rest of the line distinguishes them."""
_MAY_EXIST = re.compile(
    r"timed out|\((?:send|receive|shutdown) failure\)|(?:send|receive|shutdown) failure$|decode failed|Zero Bytes"
    r"|unexpected m(?:essage|issing socket)|Header lengths|Insane message|\bNo error$",
    re.IGNORECASE | re.MULTILINE,
)
"""The request may have arrived."""
_OF_THE_SYSTEM = frozenset(map(os.strerror, errno.errorcode))
"""Errors of a broken connection, such as `Connection reset by peer`, which slurmctld never returns itself."""

_NOTHING_SENT = re.compile(
    r"[Uu]nable to contact slurm controller|Connection refused|Munge encode|establish a configuration source"
    r"|cli_filter plugin terminated"
)
_SAID_WITH = re.compile(r"^(?:sbatch: )?(?:error: )?(?:(?:Batch job submission failed|allocation failure): )?")
_NO_CREDENTIAL = re.compile(r"authentication (?:error|credential)|credential invalid", re.IGNORECASE)
_CLUSTER_FULL = re.compile(r"temporarily unable|sleeping and retrying", re.IGNORECASE)
"""sbatch prints this, then tries again for up to two minutes: the cluster accepts no more jobs."""
_GAVE_UP = re.compile(r"Resource temporarily unavailable")
_POLICY = re.compile(r"violates .*policy|job submit limit", re.IGNORECASE)
_LIMIT = re.compile(r"\b(?:(?:QOS|Assoc)[A-Z]\w+|Max\w+PerAccount)\b")
"""The name of a limit, in an earlier line than `_POLICY`."""
_JOBS_OWN_LIMIT = re.compile(r"^QOSMin|Per(?:Job|Node)(?:Limit)?$")
"""Limits that a job breaks by itself."""
_ARRAY_TOO_LARGE = re.compile(r"invalid job array specification", re.IGNORECASE)
"""Above the site's MaxArraySize. The arrays of this program have no other fault that sbatch could mean."""

_REFUSED = re.compile(
    r"[Ii]nvalid (?:(?:partition|account|qos|feature|node|license|wckey|mcs_label|numeric)\b|--|\S.* specification)"
    r"|[Rr]equested (?:node configuration is|time limit is|reservation is invalid|nodes not in|more tasks)"
    r"|[Ss]pecification (?:invalid|required|needs)|is invalid or not|can not be satisfied|Duplicate generic resource"
    r"|not supported|unsupported|(?:user|group) not permitted|denied to requested reservation|[Dd]ependency problem"
    r"|[Mm]ore processors requested|Memory required by task|Burst Buffer request|No partition specified"
    r"|Cannot request more|parameter too long|unrecognized (?:option|--)|Unable to open file|mutually exclusive"
    r"|--\S+ is not valid|^sbatch: option '"
)
"""Errors that only another spec removes; all other answers of slurmctld may change by themselves."""
_PASSING: Final = re.compile(
    r"timed? ?out|temporar|try again|retry|connect|communicat|contact|controller|slurmctld|slurmdbd|munge|auth"
    r"|credential|plugin|slurm\.conf|config|resolve|lookup|socket|memory alloc",
    re.IGNORECASE,
)
"""Errors of sbatch's own machine; all others that it reports before it sends anything are errors in the spec."""


def submitted_id(stdout: str) -> str:
    """Return the id of the submitted job; raise SubmissionUnclear if sbatch named none, or several."""
    ids = set(_JOB_ID.findall(stdout))
    if len(ids) != 1:
        raise SubmissionUnclear(f"sbatch named {len(ids) or 'no'} jobs: {stdout.strip()!r:.200}")
    return str(ids.pop())


def submission_error(stdout: str, stderr: str) -> Exception:
    """Return the error of a failed sbatch: SubmissionRefused, ArrayTooLarge, Unreachable, or SubmissionUnclear."""
    text = stderr.strip()
    if _JOB_ID.search(stdout) or _MAY_EXIST.search(text):
        return SubmissionUnclear(text)
    # a site's wrapper may try more than once: each failed try must be sure to have submitted nothing
    errors = [_meaning(text[: match.end()]) for match in _DECISIVE.finditer(text)] or [_meaning(text)]
    return next((error for error in errors if isinstance(error, SubmissionUnclear)), errors[-1])


def interrupted(after_s: float, stderr: bytes) -> SubmissionUnclear:
    """Return the error of an sbatch that was ended: its own next try may have been under way."""
    text = stderr.decode(errors="replace").strip()
    if _CLUSTER_FULL.search(text):
        reason = "the cluster takes no more jobs for now (MaxJobCount)"
        return SubmissionUnclear(f"{reason}: sbatch was still trying after {after_s:.0f} s", full=True)
    last = f", and last said: {last_words(text)}" if text else ""
    return SubmissionUnclear(f"sbatch did not respond within {after_s:.0f} s{last}")


def first_line(text: str) -> str:
    """Return the first line of a message, as sbatch's."""
    return "sbatch: " + (text.strip().splitlines() or ["failed"])[0].removeprefix("sbatch: ")


def plain(text: str) -> str:
    """Return the message of sbatch without its prefixes."""
    lines = (_SAID_WITH.sub("", line).strip() for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "no reason given"


def last_words(text: str) -> str:
    """Return the end of sbatch's message, in one line."""
    return f"{plain((text.strip().splitlines() or [''])[-1]):.300}"


def _meaning(text: str) -> Exception:
    """Judge a message's last line. Only without an answer is it open whether there is a job."""
    own = (line for line in reversed(text.splitlines()) if line.startswith("sbatch:") or _DECISIVE.match(line))
    line = next(own, text)
    full = _CLUSTER_FULL.search(line) or (_GAVE_UP.search(line) and _CLUSTER_FULL.search(text))
    if full or _NOTHING_SENT.search(line) or (_NO_CREDENTIAL.search(line) and "Munge encode failed" in text):
        return _later(first_line(line))
    answer = _DECISIVE.match(line)
    if answer and (answer[1] in _OF_THE_SYSTEM or _NO_CREDENTIAL.search(line)):
        return SubmissionUnclear(text)
    if _POLICY.search(line):
        return _of_policy(_LIMIT.findall(text), plain(line))
    if _ARRAY_TOO_LARGE.search(line):
        return ArrayTooLarge(first_line(line), for_now=False)
    if _REFUSED.search(line):
        return SubmissionRefused(plain(line))
    passing = _PASSING.search(line) or any(word in line for word in _OF_THE_SYSTEM)
    objects = line.startswith(("sbatch: error: ", "sbatch: fatal: ")) and not passing
    return _later(first_line(line)) if answer else SubmissionUnclear(text, objects=objects)


def _of_policy(limits: Sequence[str], line: str) -> Exception:
    """The name of a limit decides; an unnamed limit is taken for the limit of queued jobs."""
    if not limits:
        return ArrayTooLarge(f"sbatch: {line}", for_now=True)
    message = f"{limits[-1]}: {line}"
    if "Submit" in limits[-1]:
        return ArrayTooLarge(f"sbatch: {message}", for_now=True)
    return SubmissionRefused(message) if _JOBS_OWN_LIMIT.search(limits[-1]) else _later(f"sbatch: {message}")


def _later(message: str) -> Unreachable:
    return Unreachable(message, "nothing was submitted; the next pass tries again", about="sbatch")
