"""What sbatch said: the id of the job that it submitted, or why there is none. Pure.

Banners of the site, notes of its plugins and errors that sbatch got over come before the line that decides, and may
hold any word. So one line is judged, and wherever a job may exist all the same, the answer is unclear.
"""

from __future__ import annotations

import re

from ..errors import Unreachable
from .base import ArrayTooLarge, SubmissionRefused, SubmissionUnclear

_JOB_ID = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?[ \t\r]*$", re.MULTILINE)
"""A whole line: of `--parsable`, or of a wrapper that drops this option. A banner may well mention some job."""

_DECISIVE = re.compile(r"^.*\bsubmission failed: .*$", re.MULTILINE)
_MAY_EXIST = re.compile(
    r"timed out|\((?:send|receive|shutdown) failure\)|decode failed|[Uu]nexpected message|Zero Bytes", re.IGNORECASE
)
"""The request may have arrived, whatever was said afterwards."""

_NOTHING_SENT = re.compile(
    r"[Uu]nable to contact slurm controller|Connection refused|Munge encode|establish a configuration source"
)
_SAID_WITH = re.compile(r"^(?:sbatch: )?(?:error: )?(?:(?:Batch job submission failed|allocation failure): )?")
_NO_CREDENTIAL = re.compile(r"authentication error", re.IGNORECASE)
_TRY_LATER = re.compile(r"temporarily unable", re.IGNORECASE)
_GAVE_UP = re.compile(r"Resource temporarily unavailable")
_POLICY = re.compile(r"violates .*policy|job submit limit", re.IGNORECASE)
_LIMIT = re.compile(r"^.*\b(?:QOS|Assoc)\w+.*$", re.MULTILINE)
_SUBMIT_LIMIT = re.compile(r"QOSMaxSubmitJob|AssocMaxSubmitJob|job submit limit", re.IGNORECASE)
_ARRAY_TOO_LARGE = re.compile(r"invalid job array specification", re.IGNORECASE)
"""Above the site's MaxArraySize. The arrays of this program have no other fault that sbatch could mean."""

REFUSED = re.compile(
    r"[Ii]nvalid (partition|account|qos|feature|node|generic resource|job array|reservation|license|wckey)"
    r"|[Rr]equested (node configuration|time limit) is|Memory specification can not be satisfied"
    r"|unrecognized option|Invalid \S+ specification|Unable to open file|invalid numeric|user not permitted"
    r"|(QOS|Assoc)M(ax|in)\w*(PerJob|GRES\b)",
)
"""sbatch's errors that are final: retrying will not help."""


def submitted_id(stdout: str) -> str:
    """The id of the submitted job.

    Raises:
        SubmissionUnclear: sbatch named none, or several.
    """
    found = set(_JOB_ID.findall(stdout))
    if len(found) != 1:
        raise SubmissionUnclear(f"sbatch named {len(found) or 'no'} jobs: {stdout.strip()!r:.200}")
    return str(found.pop())


def submission_error(stdout: str, stderr: str) -> Exception:
    """What a failed sbatch means: SubmissionRefused, ArrayTooLarge, Unreachable, or SubmissionUnclear."""
    text = stderr.strip()
    if _JOB_ID.search(stdout) or _MAY_EXIST.search(text):
        return SubmissionUnclear(text)
    # a site's wrapper may try more than once: each failed try must be sure to have submitted nothing
    errors = [_meaning(text[: found.end()]) for found in _DECISIVE.finditer(text)] or [_meaning(text)]
    return next((error for error in errors if isinstance(error, SubmissionUnclear)), errors[-1])


def nothing_sent(stderr: str) -> bool:
    """Whether sbatch surely did not reach a controller that takes jobs."""
    return isinstance(submission_error("", stderr), Unreachable)


def first_line(text: str) -> str:
    """The first line of a message, as sbatch's."""
    return "sbatch: " + (text.strip().splitlines() or ["failed"])[0].removeprefix("sbatch: ")


def plain(text: str) -> str:
    """What sbatch says, without what it says it with."""
    said = (_SAID_WITH.sub("", line).strip() for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in said if line)) or "no reason given"


def _meaning(text: str) -> Exception:
    """The meaning of a message's last line, which names no limit if it is about one: that is in a line before."""
    line = next((line for line in reversed(text.splitlines()) if _is_sbatchs(line)), text)
    if _POLICY.search(line) and (limits := _LIMIT.findall(text)):
        line = f"{limits[-1]}\n{line}"
    if _ARRAY_TOO_LARGE.search(line):
        return ArrayTooLarge(first_line(line), for_now=False)
    if REFUSED.search(line):
        return SubmissionRefused(plain(line))
    if _SUBMIT_LIMIT.search(line):
        return ArrayTooLarge(first_line(line), for_now=True)
    unsent = _NOTHING_SENT.search(line) or (_NO_CREDENTIAL.search(line) and "Munge encode failed" in text)
    if unsent or _TRY_LATER.search(line) or (_GAVE_UP.search(line) and _TRY_LATER.search(text)):
        return Unreachable(first_line(line), "nothing was submitted; the next pass tries again")
    return SubmissionUnclear(text)


def _is_sbatchs(line: str) -> bool:
    return line.startswith("sbatch:") or _DECISIVE.match(line) is not None
