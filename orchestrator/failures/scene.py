"""An error and its circumstances: its class, errno, place and time, and the few terms that only events have. Pure.

A name, a setting and a quotation sound like an event and prove nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from . import errnos
from .errnos import Fault
from .raised import OF_INPUT, OF_TEXT, Place, Raised, places


def _words(pattern: str) -> re.Pattern[str]:
    """Compile whole words in any case; `_` separates words."""
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE)


_QUOTED = re.compile(r"(?<!\w)'[^'\s]{1,80}(?: [^'\s]{1,40}){0,2}'(?!\w)|\"[^\"\n]{1,80}\"")
_PATH = re.compile(r"['\" ]/[\w.-]+(?:/|['\"])")
_NOT_FINITE = _words(
    r"(?:nans?|infs?|infinit\w*|(?:non-?|not[ _])finite|is_?(?:nan|inf|finite)|overflow[a-z]*|diverg[a-z]+)"
    r"(?!_(?!loss|grad|value)[a-z])"  # not a part of a name, such as `overflow_check`
)
_TRAINED_VALUE = _words(
    r"loss(?:es)?|grad(?:ient)?s?|norms?|logits?|activations?|weights|parameters?|prob\w*|scaler?|outputs?|training|model"
)
_BROKE_OFF = _words(r"(?:stop|abort|exit|terminat|kill|fail)\w*|end(?:ing|ed)")
_WAITED = _words(
    r"timed[- ]?out|timing out|socket timeout|[\w.]*Timeout(?:Error|Exception|Expired)|stuck|hung|hangs"
    r"|time-?out (?:after|while|waiting|expired|exceeded|reached|in)|no progress|stalled|not respond\w*|wait(?:ed|ing)"
    r"|DEADLINE_EXCEEDED"
)
_TOGETHER = _words(
    r"all_?(?:reduce|gather|to_?all)\w*|reduce_?scatter\w*|broadcast\w*|\w*barrier\w*|collectives?|[nrh]ccl\w*|oneccl"
    r"|gloo|horovod|mpi(?:_\w+)?|coordinat(?:ion|or)|process[ _]?groups?\w*|ranks?|watchdog|c10d\w*|(?:TCP)?Store"
    r"|peers?|torch\.distributed\w*|deepspeed\.comm\w*"
)
_PASSING = re.compile(
    r"connect(?:ion\b|ing )|timed[ -]?out|time-?out (?:after|while|waiting|expired|exceeded)|unavailable|unreachable"
    r"|temporar|other process|unexpectedly|heartbeat|retries|too many (?:open|requests)|incomplete|corrupt|truncat"
    r"|abruptly|: Killed|not (?:respond|answer|join|appear)|no (?:answer|response)|new thread|resolve host|for url"
    r"|(?:ailed|nable) to (?:connect|reach|download|fetch)|(?:client|server) error|name (?:resolution|or service)"
    r"|\b(?:busy|in use|(?:is|are) locked|died|killed|exited|vanished|quota|I/O|SSL\w*|proxy|gateway|servers?"
    r"|network is|rate limit|be acquired|nobody (?:answered|else)|LocalEntryNotFoundError)\b",
    re.IGNORECASE,
)
"""A state that may be another the next time; not the property of a value."""
_CHECKPOINT = re.compile(
    r"checkpoint|ckpt|resum|restor|global_step\d|optim(?:izer)?_states|model_states|\.distcp|\.safetensors|zero_pp_rank"
    r"|state[_ ]dict",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(
    r"unexpected keyword argument|missing \d+ required|takes .{0,30}arguments? but|takes no (?:keyword )?arguments"
    r"|multiple values for (?:keyword )?argument|required positional|invalid keyword argument|not JSON serializable"
    r"|[Cc]an(?:'t|not) pickle|device type tensor to numpy|'(?:module|function|method|type|property)' object"
)
"""Errors in how a call is written, independent of its arguments."""
_HALF_LOADED = re.compile(r"partially initialized|unknown location|null bytes|marshal|magic number|torch_extensions")
"""A module that is still being written or imported."""
_OF_COMPILED = "Unsupported", "UserError", "RecompileError", "FailOnRecompileLimitHit", "UncapturedHigherOrderOpError"
_REACH, _FAR = 90, 160
"""Characters within which two terms are about the same."""


@dataclass(frozen=True)
class Scene:
    """An exception, and whether its run has ever made a step (`trained`), and not in this attempt (`resumes`)."""

    raised: Raised
    trained: bool
    resumes: bool = False

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The owners of the stack's frames, innermost first."""
        return places(self.raised.frames)

    @cached_property
    def fault(self) -> Fault | None:
        """The party at fault by its errno."""
        number = self.raised.errno
        busy = {Place.SAVING, Place.LOADING, Place.DATA}
        about_files = bool(_PATH.search(self.raised.message)) or not busy.isdisjoint(self.places)
        return None if number is None else errnos.fault(number, about_files)

    @cached_property
    def passing(self) -> bool:
        """Whether it is about a state that may be another the next time, such as a connection beyond the ranks."""
        if self.raised.is_a("NetworkError", "ConnectionError") or self.fault in (Fault.NETWORK, Fault.LIMIT):
            return True
        return bool(_PASSING.search(_QUOTED.sub("''", self._text)))

    @property
    def diverged(self) -> bool:
        """Whether a value of training is not finite."""
        raised = self.raised
        if raised.is_a("FloatingPointError"):
            return True
        if raised.is_a(*OF_TEXT, *OF_INPUT, "OSError") or not {Place.DATA, Place.TRACKER}.isdisjoint(self.places[:1]):
            return False
        plain = _QUOTED.sub(lambda quoted: "''" if _NOT_FINITE.search(quoted[0]) else quoted[0], raised.message)
        source = "" if raised.statement.startswith("raise ") else raised.statement
        return _near(_NOT_FINITE, _TRAINED_VALUE, f"{plain} {source}")

    @property
    def hung(self) -> bool:
        """Whether a rank waited in vain for the others."""
        if self.raised.is_a("NetworkError", *OF_TEXT, *OF_INPUT) or Place.DATA in self.places[:2]:
            return False
        together = Place.COLLECTIVE in self.places and not self.raised.is_a("ValueError", "AssertionError")
        return (together and bool(_WAITED.search(self._text))) or reports_waiting(self._text)

    @property
    def of_a_checkpoint(self) -> bool:
        """Whether a run cannot resume because of files that it reads."""
        texts = (self.raised.text, *(f"{frame.function} {frame.code}" for frame in self.raised.frames))
        mentioned = Place.LOADING in self.places or any(map(_CHECKPOINT.search, texts))
        return self.resumes and mentioned and Place.DATA not in self.places[:1]

    @property
    def is_mistake(self) -> bool:
        """Whether it is surely of the program's text, of how it was called, or of its settings."""
        raised = self.raised
        if _HALF_LOADED.search(raised.message):
            return False
        if self.resumes or raised.is_a("SyntaxError"):
            return raised.is_a("SyntaxError")
        if raised.is_a("NameError", "OmegaConfBaseException") or (
            raised.module.startswith("torch._dynamo.") and raised.is_a(*_OF_COMPILED)
        ):
            return True
        if raised.is_a("TypeError"):
            return bool(_SIGNATURE.search(raised.message))
        imported = raised.is_a("ImportError") and raised.message.startswith("cannot import name")
        checked = raised.module.startswith(("omegaconf.", "hydra.", "pydantic", "click."))
        return not self.trained and (imported or checked or raised.is_a(*OF_INPUT))

    @property
    def of_a_program(self) -> bool:
        """Whether a program may raise it again; an interruption comes from outside."""
        return bool(self.raised.type) and not self.raised.is_a("KeyboardInterrupt", "GeneratorExit", "SystemExit")

    @cached_property
    def _text(self) -> str:
        """Type and message, or of an assertion without a message its source."""
        raised = self.raised
        return raised.text if raised.message.strip() else f"{raised.type}: {raised.statement}"


def _near(first: re.Pattern[str], second: re.Pattern[str], text: str, reach: int = _REACH) -> bool:
    positions = [match.start() for match in first.finditer(text)]
    return bool(positions) and any(
        abs(match.start() - at) <= reach for match in second.finditer(text) for at in positions
    )


@lru_cache(maxsize=2048)
def reports_divergence(line: str) -> bool:
    """Return whether a log line reports a value that is not finite, and that the program ends because of it."""
    return _near(_NOT_FINITE, _TRAINED_VALUE, line) and bool(_BROKE_OFF.search(line))


@lru_cache(maxsize=2048)
def reports_waiting(text: str) -> bool:
    """Return whether the text reports that a rank waited in vain for the others."""
    return _near(_WAITED, _TOGETHER, text, _FAR)
