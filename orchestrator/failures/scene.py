"""An error and its circumstances: facts of its class, errno, place and time rather than of its text. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from . import errnos, words
from .errnos import Fault
from .raised import OF_FILES, OF_INPUT, OF_PROGRAM, OF_TEXT, Place, Raised, places

_OF_COMPILED = "Unsupported", "UserError", "RecompileError", "FailOnRecompileLimitHit", "UncapturedHigherOrderOpError"
_SIGNATURE = re.compile(
    r"unexpected keyword argument|missing \d+ required|takes .{0,30}arguments? but|takes no (?:keyword )?arguments"
    r"|multiple values for (?:keyword )?argument|required positional|invalid keyword argument|not JSON serializable"
    r"|[Cc]an(?:'t|not) pickle|can't be used with|device type tensor to numpy|unsupported ScalarType|abstract class"
    r"|'(?:module|function|method|type|property|builtin_function_or_method)' object"
)
"""Errors in how a call is written, independent of its arguments."""
_READING = re.compile(
    r"(?<![a-z])(?:read|load|open|parse|from_?file|mem_?map|from_?buffer|unpack|fetch|download)", re.IGNORECASE
)
_RESUMING = re.compile(r"resum|restor|checkpoint|ckpt", re.IGNORECASE)
_READ = {Place.DATA, Place.LOADING, Place.TRACKER, Place.SHARED_MEMORY}
"""Code that reads files, caches or answers of others."""


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
    def text(self) -> str:
        """Type and message, or of an assertion without a message its source."""
        raised = self.raised
        return raised.text if raised.message.strip() else f"{raised.type}: {raised.statement}"

    @cached_property
    def unquoted(self) -> str:
        """Its text without quoted parts, which are names and prove nothing."""
        return words.QUOTED.sub("''", self.text)

    @cached_property
    def fault(self) -> Fault | None:
        """The party at fault by its errno."""
        number = self.raised.errno
        return None if number is None else errnos.fault(number, self._about_files)

    @cached_property
    def passing(self) -> bool:
        """Whether it speaks of a state that may be another the next time."""
        return bool(words.PASSING.search(self.unquoted))

    @cached_property
    def of_the_program(self) -> bool:
        """Whether its class blames the program's text or input."""
        return self.raised.is_a(*OF_PROGRAM) and not self.raised.is_a("OSError", "NetworkError") and not self.passing

    @cached_property
    def networked(self) -> bool:
        """Whether it concerns a connection beyond the ranks."""
        if self.raised.is_a("NetworkError", "ConnectionError"):
            return True
        if self.raised.is_a(*OF_TEXT, *OF_INPUT):
            return False
        return self.fault is Fault.NETWORK or bool(words.NETWORK.search(self.unquoted))

    @cached_property
    def outside(self) -> bool:
        """Whether it may be about files that others write: every rank reads the same half-written file."""
        raised = self.raised
        if raised.is_a("OSError", "EOFError", "JSONDecodeError", "UnicodeDecodeError", "PickleError", "ImportError"):
            return True
        if not _READ.isdisjoint(self.places[:2]) or words.PATH.search(raised.message):
            return True
        return any(_READING.search(f"{frame.function} {frame.code}") for frame in raised.frames[-2:])

    @property
    def about_paths(self) -> bool:
        """Whether a path is missing, or barred, or of the wrong kind."""
        return self.raised.is_a(*OF_FILES) or self.fault is Fault.REQUEST

    @property
    def diverged(self) -> bool:
        """Whether a value of training is not finite."""
        raised = self.raised
        if raised.is_a("FloatingPointError"):
            return True
        if raised.is_a(*OF_TEXT, *OF_INPUT, "OSError") or not {Place.DATA, Place.TRACKER}.isdisjoint(self.places[:1]):
            return False
        return words.diverged(raised.name, raised.message, raised.statement, trained=self.trained)

    @property
    def hung(self) -> bool:
        """Whether a rank waited in vain for the others."""
        if self.raised.is_a("NetworkError", *OF_TEXT, *OF_INPUT) or Place.DATA in self.places[:2]:
            return False
        together = Place.COLLECTIVE in self.places and not self.raised.is_a(*OF_PROGRAM) and words.waited(self.text)
        return together or words.reports_waiting(self.text)

    @property
    def of_a_checkpoint(self) -> bool:
        """Whether a run cannot resume because of files that it reads."""
        reading = any(_RESUMING.search(f"{frame.function} {frame.code}") for frame in self.raised.frames)
        mentioned = Place.LOADING in self.places or reading or words.CHECKPOINT.search(self.raised.text)
        return self.resumes and bool(mentioned) and Place.DATA not in self.places[:1]

    @property
    def of_the_text(self) -> bool:
        """Whether it is of the program's text or of how it was called: neither data nor a machine can cause it."""
        raised = self.raised
        if self.resumes or raised.is_a("NameError", "SyntaxError", "OmegaConfBaseException"):
            return not self.resumes or raised.is_a("SyntaxError")
        if raised.is_a("TypeError"):
            return bool(_SIGNATURE.search(raised.message))
        return raised.module.startswith("torch._dynamo.") and raised.is_a(*_OF_COMPILED)

    @property
    def of_the_settings(self) -> bool:
        """Whether a name cannot be imported, or a library refuses a configuration."""
        raised = self.raised
        imported = raised.is_a("ImportError") and raised.message.startswith("cannot import name")
        checked = raised.module.startswith(("omegaconf.", "hydra.", "pydantic", "click."))
        return imported or checked or raised.is_a(*OF_INPUT)

    @property
    def unexplained(self) -> bool:
        """Whether it is any other error of a program, which names no state that may pass."""
        raised = self.raised
        if not raised.type or raised.is_a("KeyboardInterrupt", "GeneratorExit", "SystemExit"):
            return False
        if raised.errno is not None and raised.errno not in errnos.FAULTS:
            return False
        return not self.passing

    @property
    def _about_files(self) -> bool:
        busy = {Place.SAVING, Place.LOADING, Place.DATA}
        return bool(words.PATH.search(self.raised.message)) or not busy.isdisjoint(self.places)
