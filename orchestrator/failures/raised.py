"""An exception as a rank recorded it, or as a log shows it: type, bases, errno, and where it was raised. Pure.

The record of a rank is complete. For records without frames, and for logs, the same is read from the traceback.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property, lru_cache
from pathlib import PurePath
from typing import Any

from . import errnos

OF_TEXT = "TypeError", "NameError", "AttributeError", "LookupError", "ImportError", "SyntaxError"
"""Classes of errors in a program's text: their messages contain names of it."""
OF_INPUT = "YAMLError", "ConfigError", "UsageError", "OmegaConfBaseException", "ValidationError"
"""Classes of errors in arguments and configurations."""
OF_FILES = "FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "PermissionError", "FileExistsError"

INNERMOST = 5
"""Frames that distinguish places."""

MESSAGE_LIMIT = 4000
"""Characters of a message that are read, as many as `jobs/rank.py` records."""

_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+?)| in (\S+))?\s*$')
_HEAD = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z_]\w*)(?:: |:?$)")
BREAK = re.compile(r"(?:During handling of the above|The above exception was)")
_MARKER = re.compile(r"^[\s~^]+$")


@dataclass(frozen=True)
class Frame:
    """A call on the stack: file, function and its line of source, "" if that is not known."""

    file: str
    number: int
    function: str
    code: str = ""


@dataclass(frozen=True)
class Raised:
    """One exception.

    Attributes:
        type: Dotted name of its class, "" for a line that names none.
        bases: Simple names of the class and of its bases, as far as they are known.
        frames: Outermost first.
        number: The errno that was recorded.
    """

    type: str
    message: str
    bases: frozenset[str]
    frames: tuple[Frame, ...] = ()
    number: int | None = None

    @cached_property
    def errno(self) -> int | None:
        """The errno that it carries or names."""
        return self.number if self.number is not None else errnos.find(self.message)

    @property
    def module(self) -> str:
        """The module of the class, "builtins" for Python's own."""
        return self.type.rpartition(".")[0] or "builtins"

    @cached_property
    def text(self) -> str:
        """Type and message, as rules read them."""
        return f"{self.type}: {self.message}" if self.type else self.message

    def is_a(self, *names: str) -> bool:
        """Return whether the class or a base of it has any of these simple names."""
        return not self.bases.isdisjoint(names)

    @property
    def place(self) -> str:
        """Class and innermost frames: the same for the same error of the same code; "" without frames."""
        inner = ", ".join(f"{PurePath(f.file).name}:{f.number} {f.function}" for f in self.frames[-INNERMOST:])
        return f"{self.type} at {inner}" if inner else ""

    @property
    def statement(self) -> str:
        """The source that raised it, if known: the only text of an assertion without a message."""
        return self.frames[-1].code if self.frames else ""


def recorded(error: Mapping[str, Any]) -> Raised:
    """Read the record of a rank: an `error`, or an item of its `chain`."""
    kind, message = str(error.get("type", "")), str(error.get("message", ""))[:MESSAGE_LIMIT]
    frames = _frames(error.get("frames")) or of_trace(error.get("trace") or ())
    number = error.get("errno")
    bases = error.get("bases")
    listed = [str(base).rpartition(".")[2] for base in bases] if isinstance(bases, list) else []
    return Raised(kind, message, bases_of(kind, listed), frames, number if isinstance(number, int) else None)


def last_exception(trace: str) -> tuple[list[str], str]:
    """Return the lines of a traceback above its last exception, and that exception's type and message."""
    lines = trace.splitlines()
    heads = [at for at, line in enumerate(lines) if line and not line[0].isspace() and _HEAD.match(line)]
    first = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    at = heads[-1] if heads else first
    return lines[:at], "\n".join(lines[at:])


def said(text: str, frames: Sequence[Frame] = ()) -> Raised:
    """Read a line of a log, or an exception known by its text alone."""
    head = _HEAD.match(text)
    kind, message = (head[1], text[head.end() :]) if head else ("", text)
    return Raised(kind, message, bases_of(kind), tuple(frames))


def of_trace(lines: Iterable[str]) -> tuple[Frame, ...]:
    """Return the frames of the last exception in a traceback, outermost first."""
    frames: list[Frame] = []
    for line in lines:
        if frame := _FRAME.match(line):
            frames.append(Frame(frame[1], int(frame[2]), frame[3] or frame[4] or ""))
        elif BREAK.match(line):
            frames.clear()
        elif frames and not frames[-1].code and line.startswith("    ") and not _MARKER.match(line):
            last = frames[-1]
            frames[-1] = Frame(last.file, last.number, last.function, line.strip())
    return tuple(frames)


def causes_of_trace(lines: Iterable[str]) -> Iterator[str]:
    """Return the types and messages of the exceptions that a traceback shows before its own."""
    own: list[str] = []
    for line in lines:
        if BREAK.match(line):
            yield "\n".join(own).strip()[:MESSAGE_LIMIT]
            own.clear()
        elif line.startswith("Traceback") or _FRAME.match(line):
            own.clear()
        elif own or (line and not line[0].isspace()):
            own.append(line)


def bases_of(kind: str, listed: Iterable[str] = ()) -> frozenset[str]:
    """Return simple names of a class and of its bases, as a rank listed them and as far as they are known here."""
    name = kind.rpartition(".")[2]
    return frozenset({name, *listed}) | _known(name) if name else frozenset()


@cache
def _known(name: str) -> frozenset[str]:
    own = getattr(builtins, name, None)
    known = own.__mro__[:-1] if isinstance(own, type) and issubclass(own, BaseException) else ()
    bases = {base for base, derived in _DERIVED.items() if name in derived}
    return frozenset({kind.__name__ for kind in known} | bases).union(*map(_known, bases))


def _frames(raw: object) -> tuple[Frame, ...]:
    """The frames of a record; none if it is of another shape."""
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        return ()
    shaped = [frame for frame in raw if isinstance(frame, Sequence) and len(frame) >= 3]
    return tuple(
        Frame(
            str(frame[0]),
            frame[1] if isinstance(frame[1], int) else 0,
            str(frame[2]),
            str(frame[3]) if frame[3:] else "",
        )
        for frame in shaped
    )


_DERIVED: Mapping[str, frozenset[str]] = {
    base: frozenset(names.split())
    for base, names in {
        "NetworkError": "gaierror herror SSLError SSLCertVerificationError URLError HTTPError HTTPException"
        " BadStatusLine IncompleteRead RemoteDisconnected RequestException ConnectTimeout ReadTimeout ReadTimeoutError"
        " MaxRetryError ProtocolError ProxyError ChunkedEncodingError ConnectError RemoteProtocolError ClientError"
        " ClientConnectorError ServerDisconnectedError HfHubHTTPError LocalEntryNotFoundError NameResolutionError"
        " RepositoryNotFoundError RevisionNotFoundError RemoteEntryNotFoundError GatedRepoError",
        "OmegaConfBaseException": "ConfigAttributeError ConfigKeyError MissingMandatoryValue InterpolationKeyError",
        "YAMLError": "ScannerError ParserError ComposerError ConstructorError",
        "UsageError": "ArgumentError ArgumentTypeError BadParameter NoSuchOption HFValidationError",
    }.items()
}
"""Subclasses, for a log or a record without bases; `NetworkError` and the like stand for several libraries'."""


TELLING = 3
"""Frames of an error that a person reads."""

Place = Enum("Place", "USER TEARDOWN TRACKER COLLECTIVE SAVING LOADING DATA LIBRARY")
"""The activity of a frame."""

_BY_FILE = {
    Place.TRACKER: re.compile(r"/(?:wandb|mlflow|comet_ml|neptune|tensorboardX?|clearml|swanlab|aim)/"),
    Place.SAVING: re.compile(r"torch/distributed/checkpoint/(?:state_dict_saver|filesystem)"),
    Place.LOADING: re.compile(r"torch/(?:distributed/checkpoint/|serialization)|/safetensors/|deepspeed/checkpoint/"),
    Place.COLLECTIVE: re.compile(r"torch/distributed/|deepspeed/comm/|/mpi4py/|runtime/(?:comm/|pipe/p2p)"),
    Place.DATA: re.compile(
        r"torch/utils/data/|/(?:datasets|webdataset|pyarrow|pandas|polars|h5py|PIL|torchvision|torchaudio|tokenizers"
        r"|numpy/lib|fsspec|zarr|yaml|json|tomllib|configparser|hydra|omegaconf|zipfile|gzip|tarfile|csv)(?:/|\.py)"
    ),
}
"""A library's files, the special ones first."""
_BY_FUNCTION = {
    Place.TEARDOWN: re.compile(
        r"(?:destroy_process_group|_?shutdown(?:_\w+)?|__del__|_?teardown\w*|finish|cleanup|_run_exitfuncs|destroy"
        r"|_exit_function|rotate\w*|prune\w*|_?rmtree\w*|unlink|remove(?:_\w+)?|clean\w*|close)\Z"
    ),
    Place.SAVING: re.compile(r"(?:_?save(?:_(?!for_backward)\w+)?|write_record|_legacy_save|write_checkpoint)\Z"),
    Place.LOADING: re.compile(
        r"(?:_?load_(?:checkpoint|state|state_dict|zero|universal|file|pretrained|optimizer|model_states)\w*"
        r"|_?load_\w*(?:checkpoint|state_dict)\w*|_?load|from_pretrained|_legacy_load)\Z"
    ),
}
"""Functions of anybody's."""
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python3|^<frozen|^<string>|/python3\.\d+/")


def places(frames: Iterable[Frame]) -> tuple[Place, ...]:
    """Return the activities of a stack, innermost first and each once."""
    return tuple(dict.fromkeys(place for frame in reversed(tuple(frames)) for place in _of(frame.file, frame.function)))


def telling(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames that show most of an error, outermost first: the innermost of the user's own, then others."""
    order = sorted(range(len(frames)), key=lambda i: (not _LIBRARY.search(frames[i].file), i))
    return tuple(frames[i] for i in sorted(order[-TELLING:]))


@lru_cache(maxsize=4096)
def _of(file: str, function: str) -> tuple[Place, ...]:
    by_name = tuple(place for place, pattern in _BY_FUNCTION.items() if pattern.match(function))
    if not _LIBRARY.search(file):
        return (*by_name, Place.USER)
    owner = next((place for place, pattern in _BY_FILE.items() if pattern.search(file)), Place.LIBRARY)
    return (owner,) if owner is Place.DATA else (*by_name, owner)  # whose `load` and `save` are of no checkpoint
