"""The interface of tools, their table, and their events for the store: lines of a file beside the metrics."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Final

from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload

_PASSWORD = re.compile(r"://(?:[^/\s:@]*:(?!\d+/)\S+|[^/\s:@]+)@")
_QUERY = re.compile(r"([?&][\w-]*(?:password|token|secret|key)=)[^&\s]+", re.IGNORECASE)
_LONGEST = 500
_SETTINGS: Final = ("campaign", "run", "config_hash", "seed", "global_batch", "target_step")
_SIZES: Final = ("world_size", "micro_batch", "accumulation")

Steps = Mapping[int, Mapping[str, float]]
"""The values of each step by the script's names, among them ``step`` and ``ts``, in epoch seconds."""


@dataclass
class State:
    """The part of a run that a tool has, over all its attempts, so that they become one curve there."""

    # made before the first request to the tool, so that a run whose id got lost is found again
    key: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    # run_id, where: the tool's own id of the run, "" before there is one, and its address or folder
    run_id: str = ""
    where: str = ""
    offsets: dict[int, int] = field(default_factory=dict)  # for each attempt, the bytes of its spool that the tool has
    marks: dict[str, int] = field(default_factory=dict)  # for each metric, the highest step that the tool has


class Tool(ABC):
    """One tool. `keeps_first`: a later attempt's value for the same step would be a second value, so it is not sent."""

    keeps_first: ClassVar[bool]

    def __init__(self, payload: Payload, state: State, options: Mapping[str, Any]) -> None:
        self._payload, self._state, self._options = payload, state, options

    @abstractmethod
    def open(self) -> str:
        """Begin the run, or go on with it, and set its id and address in the state. Raises any error of the tool.

        Return a difference from the spec, "" for none.
        """

    def resume(self, step: int) -> None:  # noqa: B027 - most tools go on by themselves
        """Take the lines from now on as a new attempt's, which begins with this step."""

    @abstractmethod
    def send(self, steps: Steps) -> None:
        """Send values; when it returns the tool has them."""

    @abstractmethod
    def close(self, how: str) -> None:
        """End the attempt's part; how: as of ``how_it_ended``."""


_TOOLS: Final = {"wandb": "ToWandb", "tensorboard": "ToTensorBoard", "mlflow": "ToMlflow"}
"""The class of each, in the module `to_{name}`."""


def make_tool(name: str, payload: Payload, state: State) -> Tool:
    """Return a tool. Only its own module is imported: raises ImportError if its package is not installed here."""
    kind: type[Tool] = getattr(import_module(f".to_{name}", __package__), _TOOLS[name])
    return kind(payload, state, payload.forward[name])


def metrics_of(values: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a step."""
    return {name: value for name, value in values.items() if name not in ("step", "ts")}


def settings_of(payload: Payload) -> dict[str, Any]:
    """Return the run's settings, the same in every attempt. Environment variables are left out."""
    settings = {**payload.params, **{name: getattr(payload, name) for name in _SETTINGS}}
    settings["command"] = " ".join(payload.command)
    if payload.train is not None:
        settings["train"] = {name: value for name, value in payload.train.items() if name not in _SIZES}
    return {name: value for name, value in settings.items() if value is not None}


def sizes_of(payload: Payload) -> dict[str, Any]:
    """Return the sizes, which may differ between two attempts of a run."""
    sizes = {"attempt": payload.generation, **{name: getattr(payload, name) for name in ("nodes", *_SIZES)}}
    return {name: value for name, value in sizes.items() if value is not None}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result


def tell(paths: AttemptPaths, event: str, tool: str, message: str, **data: object) -> None:
    """Record an event of the attempt, `forward.<event>`, in one write; a full disk loses it and nothing else."""
    message = without_password(message)[:_LONGEST]
    print(message, file=sys.stderr, flush=True)
    line = json.dumps({"event": event, "ts": time.time(), "tool": tool, "message": message, **data}) + "\n"
    with contextlib.suppress(OSError), open(paths.forward_spool, "ab", 0, opener=open_private) as spool:
        spool.write(line.encode())


def tell_unfinished(paths: AttemptPaths, tool: str, reason: str) -> None:
    """Record that a tool lacks lines, and how it gets them."""
    advice = f"`python -m dscampaign.jobs.forward {paths.dir} {tool}` passes the rest on, the next attempt does too"
    kept = ", and `wandb sync` what W&B keeps in files" if tool == "wandb" else ""
    tell(paths, "unfinished", tool, f"{tool}: {reason}; {advice}{kept}")


def without_password(text: str) -> str:
    """Return the text without names and passwords in addresses, and without secrets in their queries."""
    return _QUERY.sub(r"\1…", _PASSWORD.sub("://", text))
