"""Patterns of terms that only events have: a value that is not finite, a rank that waited, a network that is away.

A name, a setting and a quotation sound the same and prove nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache


def _words(pattern: str) -> re.Pattern[str]:
    """Compile whole words in any case; `_` separates words."""
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE)


QUOTED = re.compile(r"(?<!\w)'[^'\n]{1,80}'(?!\w)|\"[^\"\n]{1,80}\"")
PATH = re.compile(r"['\" ]/[\w.-]+(?:/|['\"])")

_OF_A_NAME = "(?!_(?!loss|grad|value|logit|weight|param|activation|output)[a-z])"
"""Excludes parts of names, such as `overflow_check`."""
_NOT_A_NUMBER = _words(r"(?:nans?|non-?finite|not[ _]finite|is_?(?:nan|finite))" + _OF_A_NAME)
_NOT_FINITE = _words(
    r"(?:nans?|infs?|infinit\w*|non-?finite|not[ _]finite|is_?(?:nan|inf|finite)|overflow[a-z]*|underflow[a-z]*"
    r"|diverg[a-z]+|explod[a-z]+|blew up)" + _OF_A_NAME
)
_OF_NAN = re.compile(r"NaN|NAN|Nan(?=[A-Z]|$)|Non[Ff]inite|NotFinite|Diverge")
_TRAINED_VALUE = _words(
    r"loss(?:es)?|grad(?:ient)?s?|norms?|logits?|activations?|weights|parameters?|perplexity|probs?|scaler?|outputs?"
    r"|rewards?|training|model|backward"
)
_DATA_VALUE = _words(r"input|columns?|dataset|features?|array|dataframe|csv")
_BROKE_OFF = _words(r"stop\w*|abort\w*|exit\w*|terminat\w*|halt\w*|quit\w*|giving up|kill\w*|end(?:ing|ed)|fail\w*")
_SWITCH = re.compile(
    r"[\w.-]+[\"']?\s?[=:]\s?(?:true|false|none|null|on|off|yes|no(?! \w)|enabled|disabled)\b"
    r"|typically caused by a remote worker hanging",  # the advice of Gloo beside any lost connection
    re.IGNORECASE,
)

_WAITED = re.compile(
    r"(?<![A-Za-z_])(?:timed[- ]?out|timing out"
    r"|socket timeout|time-?outs? (?:after|while|waiting|expired|exceeded|reached|error|in|on|during|occurred)"
    r"|[\w.]*Timeout(?:Error|Exception|Expired)"
    r"|(?:is|are|was|were|got|gets|still|seems?|ranks? [\d, ]+:?) stuck|stuck (?:in|at|on|for|while|since)"
    r"|no (?:progress|steps?|heartbeat|activity|output|sign of life)"
    r"|hung|hangs|hanging|(?:is|are|was|in a) deadlock\w*|deadlock detected|stalled|(?:is|are|has|have) stall\w*"
    r"|not respond\w*|unresponsive|waited|waiting|DEADLINE_EXCEEDED"
    r"|(?:did not|failed to) (?:arrive|join|reach|complete|finish|enter)|desync\w*|straggl(?:es?|ed|ing))(?![A-Za-z_])",
    re.IGNORECASE,
)
_TOGETHER = _words(
    r"all_?reduce\w*|all_?gather\w*|reduce_?scatter\w*|broadcast\w*|\w*barrier\w*|all_?to_?all\w*|collectives?"
    r"|[nrh]ccl\w*|oneccl|gloo|horovod|mpi(?:_\w+)?|coordinat(?:ion|or)|process[ _]?groups?\w*|ranks?|watchdog"
    r"|torch\.distributed\w*|c10d\w*|(?:TCP)?Store|peers?|rendezvous|i?send|i?recv|deepspeed\.comm\w*|comm"
)
_DUMP = re.compile(r"Timeout \(\d+:\d\d:\d\d")
"""faulthandler's, from `dump_traceback_later`."""

NETWORK = re.compile(
    r"HTTPS?Connection|Max retries exceeded|[Nn]ame resolution|[Nn]ame or service not known|getaddrinfo|resolve host"
    r"|\bSSL\w*|\bTLS\b|Bad Gateway|Service (?:Temporarily )?Unavailable|[Rr]ate limit|Too Many Requests|\b[Pp]roxy\b"
    r"|[Rr]ead timed out|[Cc]onnection (?:reset|refused|aborted|timed out|error|broken|closed|lost)|[Nn]etwork is"
    r"|\bfor url\b|(?:Client|Server) Error\b|couldn't connect|[Cc]annot connect"
    r"|(?:ailed|nable) to (?:connect|reach|download|fetch|resolve (?:[Hh]ost|[Aa]ddress|[Nn]ame|[Dd]omain|\S+\.\w))"
    r"|\b(?:LocalEntryNotFound|Connect(?:ion|Timeout)?|ReadTimeout|NameResolution|gai|IncompleteRead)[Ee]rror\b"
)
PASSING = re.compile(
    r"[Cc]onnect(?:ion|ing) |[Tt]imed[ -]?out|[Tt]ime-?out (?:after|while|waiting|expired|exceeded)|[Uu]navailable"
    r"|[Uu]nreachable|[Tt]emporarily|other process|unexpectedly|[Hh]eartbeat|[Rr]etries|[Tt]oo many open"
    r"|not (?:respond|answer|join|appear)|no (?:answer|response)|[Ii]ncomplete|[Cc]orrupt|[Tt]runcat|abruptly|: Killed"
    r"|\b(?:busy\b|in use\b|(?:is|are) locked|locked by\b|(?:died|killed|exited|vanished)\b|quota\b|I/O\b|checked out)"
    r"|new thread|\b(?:[Ss]ervers?|nobody (?:answered|else))\b"
)
"""A state that may be another the next time; not the property of a value."""
PASSING_PATH = re.compile(
    r"\.(?:lock|tmp|temp|incomplete|partial|part|pid|sock|socket)\b|\.nfs0|/proc/\d|/tmp/(?:tmp|pymp-|ray/)"
    r"|[/ ']\.?(?:triton/cache|torchinductor_\w+|torch_extensions)/"  # that others write
    r"|['\" ]/(?:tmp|var/tmp|dev/shm|proc|run|local|localscratch|nvme|ssd|raid)\w*/"  # a node's own
    r"|\$TMPDIR|/job[_-]?\d"
    r"|\d+-of-\d+|[-_.]\d{3,}\b[\w.-]*['\"]?$",  # one of a set that may not be complete yet
    re.MULTILINE,
)
"""A file that may be there the next time."""
CHECKPOINT = re.compile(
    r"checkpoint|ckpt|global_step\d|optim(?:izer)?_states|model_states|\.distcp|\.safetensors|zero_pp_rank"
    r"|state[_ ]dict",
    re.IGNORECASE,
)


def near(first: re.Pattern[str], second: re.Pattern[str], text: str, reach: int = 90) -> bool:
    """Return whether words of both stand within so many characters of each other."""
    positions = [match.start() for match in first.finditer(text)]
    return bool(positions) and any(
        abs(match.start() - at) <= reach for match in second.finditer(text) for at in positions
    )


def diverged(name: str, message: str, statement: str, *, trained: bool) -> bool:
    """Return whether an error (class, message, source line) reports a value of training that is not finite."""
    if _OF_NAN.search(name):
        return True
    plain = QUOTED.sub(lambda quoted: "''" if _NOT_FINITE.search(quoted[0]) else quoted[0], message)
    text = plain if statement.startswith("raise ") else f"{plain} {statement}"
    if not trained:
        return _not_finite(text)
    return near(_NOT_FINITE, _TRAINED_VALUE, text) or bool(_NOT_A_NUMBER.search(plain))


@lru_cache(maxsize=2048)
def reports_divergence(line: str) -> bool:
    """Return whether a log line reports a value that is not finite, and that the program ends because of it."""
    plain = _SWITCH.sub("", line)
    return _not_finite(plain) and bool(_BROKE_OFF.search(plain))


@lru_cache(maxsize=2048)
def reports_waiting(text: str) -> bool:
    """Return whether the text reports that a rank waited in vain for the others; a setting only names a limit."""
    return bool(_DUMP.match(text)) or near(_WAITED, _TOGETHER, _SWITCH.sub("", text), 160)


def waited(text: str) -> bool:
    """Return whether the text is about a wait in vain."""
    return bool(_WAITED.search(text))


def _not_finite(text: str) -> bool:
    return near(_NOT_FINITE, _TRAINED_VALUE, text) and not near(_NOT_FINITE, _DATA_VALUE, text, 24)
