"""The kinds of errors: what an exception's class, its place, its errno and the time say, whatever its words. Pure.

A kind is asked after the rules that know an error's own words (`rules.py`), and before nothing: what no kind knows is a
crash. Where words count here, they are the vocabulary of a subject (what is not finite, who waited for whom), not
sentences. The first kind that holds counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from . import devices, errnos, mistakes
from . import vocabulary as words
from .errnos import Fault
from .places import Place, places
from .policy import FailureClass
from .raised import Raised
from .verdict import Diagnosis, Sureness


@dataclass(frozen=True)
class Scene:
    """An exception and its circumstances.

    Attributes:
        trained: whether the experiment has ever made a step, so that its configuration works.
        resumes: whether it began from a checkpoint and has made no step since.
        nodes: how many nodes the attempt has.
    """

    raised: Raised
    trained: bool
    resumes: bool = False
    nodes: int = 1

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """What the stack was doing, innermost first."""
        return places(self.raised.frames)

    @property
    def where(self) -> Place | None:
        """The innermost of them."""
        return self.places[0] if self.places else None

    @cached_property
    def text(self) -> str:
        """Type and message, or for an assertion without words its source."""
        raised = self.raised
        return raised.text if raised.message.strip() else f"{raised.type}: {raised.statement}"

    @cached_property
    def fault(self) -> Fault | None:
        """Who is at fault by the errno."""
        number = self.raised.errno
        return None if number is None else errnos.fault(number, self.about_files)

    @cached_property
    def networked(self) -> bool:
        """Whether it was about a connection beyond the ranks."""
        answered = self.where is Place.DOWNLOAD and self.raised.is_a("LookupError", "JSONDecodeError")
        if self.of_the_program and not answered:
            return False
        return (
            self.raised.is_a("NetworkError", "ConnectionError")
            or self.raised.module.startswith(words.NETWORK_MODULES)
            or self.fault is Fault.NETWORK
            or Place.DOWNLOAD in self.places[:2]
            or bool(words.NETWORK.search(self.text))
        )

    @cached_property
    def of_the_program(self) -> bool:
        """Whether its class says that the program, or what it was given, is wrong."""
        return mistakes.of_the_program(self.raised)

    @cached_property
    def of_circumstances(self) -> bool:
        """Whether its message speaks of what may be otherwise the next time."""
        return words.of_circumstances(self.raised.message)

    @cached_property
    def demands(self) -> bool:
        """Whether it is a demand on the caller, by any class of exception, that another time will not meet either."""
        raised = self.raised
        if not raised.type or raised.is_a("KeyboardInterrupt", "GeneratorExit"):
            return False
        if raised.module.startswith(words.TRACKERS) or devices.FAILED.search(raised.message) or self.of_circumstances:
            return False
        if raised.errno is not None and raised.errno not in errnos.FAULTS:
            return False  # the system's word for what it is, which nobody knows
        in_code = self.where in (Place.MODEL, Place.SETUP, Place.ARGUMENTS, Place.IMPORT)
        own_check = raised.statement.startswith("raise ") and self.where is Place.LIBRARY
        if in_code or own_check or raised.module.startswith(mistakes.MISTAKEN_MODULES):
            return True
        operator = raised.name == "RuntimeError" and words.TENSORS.search(raised.message)
        return bool(operator or words.DEMAND.search(raised.message))

    @property
    def resuming(self) -> bool:
        """Whether the source on the stack speaks of resuming."""
        return any(
            words.RESUMING.search(frame.function) or words.RESUMING.search(frame.code) for frame in self.raised.frames
        )

    @property
    def about_files(self) -> bool:
        """Whether a file was being used: the error names a path, or checkpoints or data were read or written."""
        busy = {Place.SAVING, Place.LOADING, Place.DATA}
        return bool(words.PATH.search(self.raised.message)) or not busy.isdisjoint(self.places)


@dataclass(frozen=True)
class ErrorKind(Diagnosis):
    """A kind of error."""

    holds: Callable[[Scene], bool] = lambda _: False


def by_errno(scene: Scene) -> ErrorKind | None:
    """What its errno proves, None if it has none that proves anything."""
    return next((kind for kind in SYSTEM_KINDS if kind.holds(scene)), None)


def kind_of(scene: Scene) -> ErrorKind | None:
    """What kind of error it is; None if it is of none that is known."""
    return next((kind for kind in KINDS if kind.may_hold(scene.trained, scene.resumes) and kind.holds(scene)), None)


# -- what holds -----------------------------------------------------------------------------------------------


def _no_room(scene: Scene) -> bool:
    return words.lacks_device_memory(scene.raised.message)


def _diverged(scene: Scene) -> bool:
    if scene.raised.is_a(*mistakes.OF_TEXT, *mistakes.OF_INPUT, "OSError"):
        return False  # of a name that sounds so
    if Place.DATA in scene.places[:2] or scene.where is Place.TRACKER:
        return False
    raised = scene.raised
    if raised.is_a("FloatingPointError") or words.OF_NAN.search(raised.name):
        return True
    said = words.without_quotations(raised.message)
    text = f"{said} {raised.statement}" if not raised.statement.startswith("raise ") else said
    if not scene.trained:
        return words.not_finite(text)
    return (
        words.near(words.NOT_FINITE, words.TRAINED_VALUE, text)
        or bool(words.NOT_A_NUMBER.search(said))
        or words.near(words.SCALE, words.SPENT, text, 40)
        or words.near(words.LOSS_IS, words.OUT_OF_BOUNDS, text, 60)
        or (raised.is_a("OverflowError") and bool(words.TRAINED_VALUE.search(raised.statement)))
    )


def _hung(scene: Scene) -> bool:
    if scene.raised.is_a("NetworkError") or scene.of_the_program or Place.DATA in scene.places[:2]:
        return False
    together = Place.COLLECTIVE in scene.places and words.WAITED.search(scene.text)
    return bool(together and not words.MEETING.search(scene.text)) or words.waited_for_others(scene.text)


def _never_met(scene: Scene) -> bool:
    text = scene.text
    return (
        scene.nodes > 1
        and not scene.of_the_program
        and bool(words.WAITED.search(text) and words.MEETING.search(text) and words.TOGETHER.search(text))
    )


def _status(scene: Scene) -> int | None:
    found = words.STATUS.search(scene.text)
    return int(found[1] or found[2]) if found else None


def _refused(scene: Scene) -> bool:
    tracked = scene.raised.module.startswith(words.TRACKERS) and not scene.of_the_program
    if not (scene.networked or tracked) or words.PASSING_REFUSAL.search(scene.text):
        return False
    status = _status(scene)
    if status is None:
        return bool(words.REFUSAL.search(scene.text))
    return 400 <= status < 500 and status not in words.PASSING_STATUS


def _tools(scene: Scene) -> bool:
    if words.KILLED.search(scene.text):
        return False
    if scene.raised.is_a(*words.TOOL_TYPES) or words.TOOL.search(scene.text):
        return True
    return scene.where is Place.TOOLCHAIN and not scene.of_circumstances


def _barred(scene: Scene) -> bool:
    """Whether a reader refused a name that a sound file holds; the file before it holds the same."""
    reading = scene.raised.is_a("PickleError") or (scene.raised.is_a("ValueError") and Place.LOADING in scene.places)
    return reading and words.near(words.NAMED, words.BARRED, scene.raised.message)


def _unreadable(scene: Scene) -> bool:
    raised = scene.raised
    if Place.DATA in scene.places[:1]:
        return False
    named = bool(words.CHECKPOINT.search(raised.text))
    if (named or Place.LOADING in scene.places) and (
        raised.is_a(*words.CORRUPT) or words.UNREADABLE.search(raised.message)
    ):
        return True
    if not scene.resumes or not (named or Place.LOADING in scene.places or scene.resuming):
        return False
    lacking = raised.is_a("LookupError", "ValueError", "AssertionError") or _no_such_request(scene)
    return lacking or (named and bool(words.DIFFERS.search(raised.message)))


def _no_such_request(scene: Scene) -> bool:
    return scene.fault is Fault.REQUEST or scene.raised.is_a(
        "FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "PermissionError", "FileExistsError"
    )


def _too_late(scene: Scene) -> bool:
    passing = words.PASSING_FILE.search(scene.raised.message)
    denied = scene.raised.is_a("PermissionError") or scene.raised.errno in (1, 13)
    return _no_such_request(scene) and bool(passing) and not (denied and not words.OF_NODE.search(scene.raised.message))


def _misspelled(scene: Scene) -> bool:
    """An error of the program's text: neither data nor a machine can cause it, except one with other libraries."""
    raised = scene.raised
    if scene.resumes:
        return False
    if raised.is_a("TypeError"):
        return bool(mistakes.SIGNATURE.search(raised.message))
    compiled = raised.module.startswith("torch._dynamo.") and raised.is_a(*mistakes.OF_COMPILED)
    return compiled or raised.is_a("NameError", "OmegaConfBaseException") or _misused(scene)


def _misused(scene: Scene) -> bool:
    """Whether an operator was given tensors of a kind that it does not take, and that no data decides."""
    if Place.DATA in scene.places[:2] or not scene.demands:
        return False
    return scene.raised.name == "RuntimeError" and bool(
        words.OPERANDS.search(scene.raised.message) and words.DEMAND.search(scene.raised.message)
    )


def _mistaken(scene: Scene) -> bool:
    raised = scene.raised
    if raised.is_a("JSONDecodeError") and "Expecting value" in raised.message:  # an empty answer, or an empty file
        return bool({Place.SETUP, Place.USER}.intersection(scene.places)) and Place.DOWNLOAD not in scene.places
    if Place.TRACKER in scene.places[:1] and not raised.is_a("UsageError"):
        return False
    if raised.is_a(*mistakes.OF_STATE) and words.PASSING.search(raised.message):
        return False
    return raised.is_a(*mistakes.MISTAKEN) or bool(mistakes.MISTAKEN_NAME.search(raised.name))


def _unfit(scene: Scene) -> bool:
    """A demand on the machine: its driver, its GPUs or their number."""
    text = scene.raised.message
    return bool(devices.ARGUMENT.search(text)) or (scene.demands and bool(words.MACHINE.search(text)))


_likely = partial(ErrorKind, sure=Sureness.LIKELY)
_mistake = partial(_likely, kind=FailureClass.DETERMINISTIC)
_early_mistake = partial(_mistake, early=True)
_lacking = partial(_early_mistake, per_node=True, environment=True)

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
    _likely("device-memory", FailureClass.OOM, holds=_no_room),
    _likely("loss-not-finite", FailureClass.DIVERGED, "lower train.lr, or warm up longer", holds=_diverged),
    _likely("never-met", FailureClass.NODE, holds=_never_met),
    _likely("collective", FailureClass.HANG, holds=_hung),
    _mistake("barred", hint="let the reader accept what the file holds, if you trust it", holds=_barred),
    _likely("checkpoint-unreadable", FailureClass.CHECKPOINT, holds=_unreadable),
    _early_mistake("refused", hint="a name or a right is wrong", holds=_refused),
    _likely("away", FailureClass.CRASH, "fetch it on the login node first", holds=lambda scene: scene.networked),
    _likely("limit", FailureClass.CRASH, holds=lambda scene: scene.fault is Fault.LIMIT),
    _likely("passing-file", FailureClass.CRASH, holds=_too_late),
    _lacking("toolchain", hint="load a compiler and CUDA in `slurm.setup` that fit torch", holds=_tools),
    _early_mistake(
        "no-file",
        hint="the path must exist on the compute nodes",
        per_node=True,
        sure=Sureness.CERTAIN,
        holds=_no_such_request,
    ),
    _lacking("unfit-machine", hint="the nodes' GPUs or driver are not what the program wants", holds=_unfit),
    _mistake("script-error", holds=_misspelled),
    _early_mistake("script-error", holds=_mistaken),
    _early_mistake("demand", holds=lambda scene: scene.demands),
)
"""In the order of what they prove: a value, the machine, others, and only then the program."""

UNREADABLE_INPUT = Diagnosis(
    "input-unreadable", FailureClass.DETERMINISTIC, "fetch the file again", per_node=True, sure=Sureness.LIKELY
)
"""What an unreadable file is to a run that has no checkpoint yet: what it was given to start from."""
