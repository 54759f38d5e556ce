"""What an error is: by its errno, its own words (`rules.py`), or its class, place and time. Pure.

Before the first step, an error that nothing else explains is a mistake of the script or of what it was given. Only a
few are certain: those of the program's text, which no file, node or network can cause. All others are *likely*, and a
likely mistake takes a second witness (see `classify.py`). So no kind needs to know how a library words its complaints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from . import devices, errnos, words
from .errnos import Fault
from .evidence import Clue, Ended
from .places import Place, places
from .policy import FailureClass
from .raised import OF_FILES, OF_INPUT, OF_PROGRAM, OF_TEXT, Raised, nested
from .rules import MEMORY_RULES, RULES, Rule, RuleTable
from .verdict import Diagnosis, Sureness

_OF_COMPILED = "Unsupported", "UserError", "RecompileError", "FailOnRecompileLimitHit", "UncapturedHigherOrderOpError"
_SIGNATURE = re.compile(
    r"unexpected keyword argument|missing \d+ required|takes .{0,30}arguments? but|takes no (?:keyword )?arguments"
    r"|multiple values for (?:keyword )?argument|required positional|invalid keyword argument|not JSON serializable"
    r"|[Cc]an(?:'t|not) pickle|can't be used with|device type tensor to numpy|unsupported ScalarType|abstract class"
    r"|'(?:module|function|method|type|property|builtin_function_or_method)' object"
)
"""How a call is written, whatever it is called with."""
_HALF_LOADED = re.compile(
    r"partially initialized|unknown location|null bytes|marshal|bad magic number|torch_extensions"
)
"""Of a module that is still being written or imported."""
_BARRED = re.compile(
    r"allow_pickle|[Ww]eights only load failed|Unsupported (?:global|class)"
    r"|\b(?:globals?|class(?:es)?|functions?)\b.{0,60}\b"
    r"(?:not (?:an )?(?:allowed|trusted)|forbidden|disallowed|blocked)"
)
"""A reader that is careful by its settings refuses a name in the file; every other file has it too."""
_CORRUPT = "UnpicklingError", "EOFError", "BadZipFile", "SafetensorError", "LZMAError", "BadGzipFile", "error"
_OPERATORS = re.compile(r"/torch/(?:nn|autograd|optim|_tensor|functional|amp|_ops)")
_READING = re.compile(
    r"(?<![a-z])(?:read|load|open|parse|from_?file|mem_?map|from_?buffer|unpack|fetch|download)", re.IGNORECASE
)
_DIFFERS = re.compile(r"mismatch|does(?:n't| not) match|missing|differs?\b|instead of|[Ee]xpected|not found|size of")
_RESUMING = re.compile(r"resum|restor|checkpoint|ckpt", re.IGNORECASE)
_READ = frozenset(
    {Place.DATA, Place.LOADING, Place.DOWNLOAD, Place.TOOLCHAIN, Place.IMPORT, Place.TRACKER, Place.SHARED_MEMORY}
)
"""Where a program works with what others write: files, caches, answers."""


@dataclass(frozen=True)
class Scene:
    """An exception and its circumstances: whether the run has ever made a step, or resumes."""

    raised: Raised
    trained: bool
    resumes: bool = False

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """What the stack was doing, innermost first."""
        return places(self.raised.frames)

    @cached_property
    def text(self) -> str:
        """Type and message, or of an assertion without words its source."""
        raised = self.raised
        return raised.text if raised.message.strip() else f"{raised.type}: {raised.statement}"

    @cached_property
    def fault(self) -> Fault | None:
        """What the errno blames."""
        number = self.raised.errno
        return None if number is None else errnos.fault(number, self._about_files)

    @cached_property
    def of_the_program(self) -> bool:
        """Whether its class blames the program's text or input; quoted words are names and tell nothing."""
        raised = self.raised
        if not raised.is_a(*OF_PROGRAM) or raised.is_a("OSError", "NetworkError"):
            return False
        return not words.PASSING.search(words.QUOTED.sub("''", raised.message))

    @cached_property
    def networked(self) -> bool:
        """Whether it concerns a connection beyond the ranks."""
        raised, near = self.raised, Place.DOWNLOAD in self.places[:2]
        if raised.is_a("NetworkError", "ConnectionError"):
            return True
        if raised.is_a(*OF_TEXT, *OF_INPUT) and not (near and raised.is_a("LookupError")):
            return False
        if raised.module.startswith(words.NETWORK_MODULES):
            return True
        return near or self.fault is Fault.NETWORK or bool(words.NETWORK.search(words.QUOTED.sub("''", self.text)))

    @cached_property
    def outside(self) -> bool:
        """Whether it may be about what others write: every rank reads the same half-written file."""
        raised = self.raised
        if raised.is_a("OSError", "EOFError", "JSONDecodeError", "UnicodeDecodeError", "PickleError", "ImportError"):
            return True
        if not _READ.isdisjoint(self.places[:2]) or words.PATH.search(raised.message):
            return True
        return any(_READING.search(f"{frame.function} {frame.code}") for frame in raised.frames[-2:])

    @property
    def stated(self) -> bool:
        """Whether Python itself or an operator of torch's raised it, or a script in such a class."""
        torch = bool(self.raised.frames) and _OPERATORS.search(self.raised.frames[-1].file)
        return self.of_the_program or bool(torch and not words.of_circumstances(self.text))

    @property
    def _about_files(self) -> bool:
        busy = {Place.SAVING, Place.LOADING, Place.DATA}
        return bool(words.PATH.search(self.raised.message)) or not busy.isdisjoint(self.places)


@dataclass(frozen=True)
class ErrorKind(Diagnosis):
    """A kind of error."""

    holds: Callable[[Scene], bool] = lambda _: False


def diagnosis_of(clue: Clue, ended: Ended) -> tuple[Diagnosis | None, str]:
    """What the error is, and the text that proves it: its own, or that of an exception in its chain.

    What passes comes first, also where it only led to a mistake: without it there would have been none.
    """
    found = _judged(clue.raised, clue.text, ended)
    if found and found.kind is not FailureClass.DETERMINISTIC and found.sure is Sureness.CERTAIN:
        return found, clue.text
    causes = [(earlier, cause.text) for cause in clue.causes if (earlier := _judged(cause, cause.text, ended))]
    for earlier, text in causes:
        if earlier.kind is not FailureClass.DETERMINISTIC:
            return earlier, text
    vague = found is None or found.name == "demand"
    if vague and causes and (nested(clue.raised) or not words.of_circumstances(clue.text)):
        return causes[-1]
    return found, clue.text


def _judged(raised: Raised, text: str, ended: Ended) -> Diagnosis | None:
    seen = scene(raised, ended)
    by_errno = (kind for kind in SYSTEM_KINDS if kind.holds(seen))
    return match(text, ended, MEMORY_RULES) or next(by_errno, None) or match(text, ended) or kind_of(seen)


def scene(raised: Raised, ended: Ended) -> Scene:
    """The exception, and its circumstances in that attempt."""
    return Scene(raised, ended.trained, ended.resumes)


def match(text: str, ended: Ended, rules: RuleTable = RULES) -> Rule | None:
    """The rule that the text matches, of those that may hold at this time."""
    return rules.first(text, trained=ended.trained, resumes=ended.resumes)


def kind_of(scene: Scene) -> ErrorKind | None:
    """The kind of error by class, place and time; None if nothing is known of it."""
    return next((kind for kind in KINDS if kind.may_hold(scene.trained, scene.resumes) and kind.holds(scene)), None)


# -- what holds -----------------------------------------------------------------------------------------------


def _diverged(scene: Scene) -> bool:
    raised = scene.raised
    if raised.is_a("FloatingPointError"):
        return True
    if raised.is_a(*OF_TEXT, *OF_INPUT, "OSError") or not {Place.DATA, Place.TRACKER}.isdisjoint(scene.places[:1]):
        return False
    return words.diverged(raised.name, raised.message, raised.statement, trained=scene.trained)


def _hung(scene: Scene) -> bool:
    if scene.raised.is_a("NetworkError", *OF_TEXT, *OF_INPUT) or Place.DATA in scene.places[:2]:
        return False
    if scene.raised.is_a(*OF_PROGRAM):  # may name a setting
        return words.reports_waiting(scene.text)
    together = Place.COLLECTIVE in scene.places and words.waited(scene.text)
    return together or words.waited_for_others(scene.text)


def _unreadable(scene: Scene) -> bool:
    raised, loading = scene.raised, Place.LOADING in scene.places
    resuming = scene.resumes and any(_RESUMING.search(f"{f.function} {f.code}") for f in raised.frames)
    if Place.DATA in scene.places[:1] or not (loading or resuming or words.CHECKPOINT.search(raised.text)):
        return False
    if raised.is_a(*_CORRUPT) or words.UNREADABLE.search(raised.message):
        return True
    lacking = raised.is_a("LookupError", "ValueError", "AssertionError", *OF_FILES) or scene.fault is Fault.REQUEST
    return scene.resumes and (lacking or bool(_DIFFERS.search(raised.message)))


def _too_late(scene: Scene) -> bool:
    files = scene.raised.is_a(*OF_FILES) or scene.fault is Fault.REQUEST
    denied = scene.raised.is_a("PermissionError") and not words.OF_NODE.search(scene.raised.message)
    return files and not denied and bool(words.PASSING_FILE.search(scene.raised.message))


def _certain(scene: Scene) -> bool:
    """An error of the program's text, or of how it was called: neither data nor a machine can cause it."""
    raised = scene.raised
    if _HALF_LOADED.search(raised.message):
        return False
    if scene.resumes or raised.is_a("NameError", "SyntaxError", "OmegaConfBaseException"):
        return not scene.resumes or raised.is_a("SyntaxError")
    if raised.is_a("TypeError"):
        return bool(_SIGNATURE.search(raised.message))
    return raised.module.startswith("torch._dynamo.") and raised.is_a(*_OF_COMPILED)


def _certain_at_first(scene: Scene) -> bool:
    raised = scene.raised
    if _HALF_LOADED.search(raised.message):
        return False
    imported = raised.is_a("ImportError") and raised.message.startswith("cannot import name")
    return (
        imported or raised.is_a(*OF_INPUT) or raised.module.startswith(("omegaconf.", "hydra.", "pydantic", "click."))
    )


def _likely(scene: Scene) -> bool:
    """Any other error of the program, unless it speaks of circumstances."""
    raised = scene.raised
    if not raised.type or raised.is_a("KeyboardInterrupt", "GeneratorExit", "SystemExit"):
        return False
    if raised.errno is not None and raised.errno not in errnos.FAULTS:
        return False
    return scene.of_the_program or not words.of_circumstances(scene.text)


_kind = partial(ErrorKind, sure=Sureness.LIKELY)
_mistake = partial(ErrorKind, kind=FailureClass.DETERMINISTIC)

SYSTEM_KINDS: Sequence[ErrorKind] = (
    ErrorKind(
        "shared-memory",
        FailureClass.HOST_OOM,
        "fewer data-loader workers, or a larger /dev/shm",
        holds=lambda scene: scene.fault is Fault.STORAGE and Place.SHARED_MEMORY in scene.places,
    ),
    ErrorKind("storage", FailureClass.STORAGE, holds=lambda scene: scene.fault is Fault.STORAGE),
    ErrorKind("memory-error", FailureClass.HOST_OOM, holds=lambda scene: scene.fault is Fault.MEMORY),
)
"""What a system call's errno proves, whatever was made of it."""

KINDS: Sequence[ErrorKind] = (
    _kind("device-memory", FailureClass.OOM, holds=lambda scene: words.lacks_device_memory(scene.raised.message)),
    _kind("loss-not-finite", FailureClass.DIVERGED, "lower train.lr, or warm up longer", holds=_diverged),
    _kind("collective", FailureClass.HANG, holds=_hung),
    _mistake(
        "barred",
        hint="let the reader accept what the file holds, if you trust it",
        holds=lambda scene: bool(_BARRED.search(scene.raised.message)),
    ),
    _kind("checkpoint-unreadable", FailureClass.CHECKPOINT, holds=_unreadable),
    _mistake(
        "refused",
        hint="a name or a right is wrong",
        early=True,
        sure=Sureness.LIKELY,
        holds=lambda scene: scene.networked and bool(words.REFUSAL.search(scene.text)),
    ),
    _kind("away", FailureClass.CRASH, "fetch it on the login node first", holds=lambda scene: scene.networked),
    _kind("limit", FailureClass.CRASH, holds=lambda scene: scene.fault is Fault.LIMIT),
    _kind("passing-file", FailureClass.CRASH, holds=_too_late),
    _mistake("script-error", holds=_certain),
    _mistake("script-error", early=True, holds=_certain_at_first),
    _mistake(
        "toolchain",
        hint="load a compiler and CUDA in `slurm.setup` that fit torch",
        early=True,
        environment=True,
        sure=Sureness.LIKELY,
        holds=lambda scene: (
            (Place.TOOLCHAIN in scene.places[:1] and not words.of_circumstances(scene.text))
            or (scene.resumes and scene.raised.is_a("ImportError"))
        ),
    ),
    _mistake(
        "no-file",
        hint="the path must exist on the compute nodes",
        early=True,
        sure=Sureness.LIKELY,
        holds=lambda scene: scene.raised.is_a(*OF_FILES) or scene.fault is Fault.REQUEST,
    ),
    _mistake("demand", early=True, sure=Sureness.LIKELY, holds=_likely),
)
"""In the order of what they prove: a value, the machine, others, and only then the program."""

UNREADABLE_INPUT = Diagnosis(
    "input-unreadable", FailureClass.DETERMINISTIC, "fetch the file again", sure=Sureness.LIKELY
)
"""What an unreadable file is to a run that has no checkpoint yet: what it was given to start from."""


def final_at_once(found: Diagnosis, seen: Scene, nodes: int) -> bool:
    """Whether a likely mistake that ranks of all those nodes witness is one: what all of them read may yet pass."""
    message = seen.raised.message
    if found.name == "no-file":
        return not words.ONE_OF_MANY.search(message) and not words.OF_NODE.search(message)
    if found.environment or (not seen.of_the_program and devices.NAMED.search(message)):
        return nodes > 1
    return isinstance(found, Rule) or (seen.stated and not seen.outside)
