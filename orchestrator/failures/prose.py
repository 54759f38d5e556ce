"""What a line of a log says that is no exception's: that the loss is not finite, that somebody waited. Pure.

Programs also print their settings in such words. A setting names a limit, or is switched on; only a verb tells that
anything has happened.
"""

from __future__ import annotations

import re

from . import vocabulary as words

_SWITCH = re.compile(r"[\w.-]+[\"']?\s?[=:]\s?(?:true|false|none|null|on|off|yes|no|enabled|disabled)\b", re.IGNORECASE)
_HAS_WAITED = re.compile(
    r"(?<![A-Za-z_])(?:timed[- ]?out|timing out"
    r"|time-?outs? (?:after|while|waiting|expired|exceeded|reached|error|in|on|during|occurred)"
    r"|[\w.]*Timeout(?:Error|Exception|Expired)"
    r"|(?:is|are|was|were|got|gets|still|seems?|ranks? [\d, ]+:?) stuck|stuck (?:in|at|on|for|while|since)"
    r"|no (?:progress|steps?|heartbeat|activity|output|sign of life)"
    r"|hung|hangs|hanging|(?:is|are|was|in a) deadlock\w*|deadlock detected|stalled|(?:is|are|has|have) stall\w*"
    r"|not respond\w*|unresponsive|waited|waiting|DEADLINE_EXCEEDED"
    r"|(?:did not|failed to) (?:arrive|join|reach|complete|finish|enter)|desync\w*|straggl(?:es?|ed|ing))(?![A-Za-z_])",
    re.IGNORECASE,
)


def says_it_diverged(text: str) -> bool:
    """Whether it says that a value of training is not finite, and that the program ends for it."""
    said = _SWITCH.sub("", text)
    return words.not_finite(said) and words.breaks_off(said)


def says_it_waited(text: str) -> bool:
    """Whether it says that a rank waited in vain for the others."""
    if not words.waited_for_others(text):
        return False
    return bool(words.DUMP.match(text)) or words.near(_HAS_WAITED, words.TOGETHER, _SWITCH.sub("", text), 160)
