"""What every tool has to be able to do, and which there are."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Final

from dscampaign.jobs.shared.payload import Payload

Steps = Mapping[int, Mapping[str, float]]
"""The values of each step by the names that the script reported; ``step`` and ``ts``, in epoch seconds, among them."""

_UNMEASURED = frozenset({"step", "ts"})
_METRIC: Final = "metric."
"""Goes before a name that begins like those that the tool or this program gives its own values there."""


@dataclass(frozen=True)
class Opened:
    """A run in a tool.

    Attributes:
        run_id: as the tool calls it.
        where: its address or folder.
        trouble: what is not as the spec asks, "" for nothing.
    """

    run_id: str
    where: str
    trouble: str = ""


@dataclass
class State:
    """How much of a run a tool has, over all its attempts, so that they become one curve there.

    Attributes:
        key: made up before the tool was first asked for anything, so that a run whose id got lost is found again.
        run_id: the tool's own id of the run, "" before it has one.
        where: address or folder of the run in the tool.
        offsets: for each attempt, the bytes of its spool that the tool has.
        marks: for each metric, the highest step that the tool has.
    """

    key: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    run_id: str = ""
    where: str = ""
    offsets: dict[int, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)


class Tool(ABC):
    """One tool, of which only its own module is imported.

    Args:
        payload: the attempt.
        state: what the tool has of its run.

    Attributes:
        keeps_first: a value that a later attempt reports for the same step would be a second one, so it is not sent.
    """

    keeps_first: ClassVar[bool]

    def __init__(self, payload: Payload, state: State) -> None:
        self._payload, self._state = payload, state

    @abstractmethod
    def open(self) -> Opened:
        """Begins the run, or goes on with it. Raises whatever the tool raises."""

    def resume(self, step: int) -> None:  # noqa: B027 - most tools go on by themselves
        """The lines from now on are of a new attempt, which begins with this step."""

    @abstractmethod
    def send(self, steps: Steps) -> None:
        """Passes values on; when it returns they are the tool's to keep."""

    @abstractmethod
    def close(self, how: str) -> None:
        """Ends the attempt's part; how: as ``how_it_ended`` says."""


_TOOLS: Final = {
    "wandb": (".to_wandb", "ToWandb"),
    "tensorboard": (".to_tensorboard", "ToTensorBoard"),
    "mlflow": (".to_mlflow", "ToMlflow"),
}
"""The module and the class of each."""


def make_tool(name: str, payload: Payload, state: State) -> Tool:
    """The tool of that name, of which only its own module is imported: it loads a package that others may not have.

    Raises:
        ImportError: its package is not installed here.
        ValueError: there is no such tool.
    """
    if name not in _TOOLS:
        raise ValueError(f"no tool named {name}")
    module, made = _TOOLS[name]
    tool: Tool = getattr(import_module(module, __package__), made)(payload, state)
    return tool


def metrics_of(values: Mapping[str, float], taken: str = "") -> dict[str, float]:
    """Return what was measured in a step.

    Args:
        values: the step's.
        taken: how names begin that are not for metrics in the tool; "" for none.
    """
    clashes = (taken, _METRIC) if taken else ()
    named = {_METRIC + name if name.startswith(clashes) else name: value for name, value in values.items()}
    return {name: value for name, value in named.items() if name not in _UNMEASURED}


def settings_of(payload: Payload) -> dict[str, Any]:
    """What the run is: the same in every attempt. Environment variables are left out."""
    settings: dict[str, Any] = {
        **payload.params,
        "campaign": payload.campaign,
        "run": payload.run,
        "config_hash": payload.config_hash,
        "seed": payload.seed,
        "global_batch": payload.global_batch,
        "target_step": payload.target_step,
        "command": " ".join(payload.command),
    }
    sizes = ("micro_batch", "accumulation", "world_size")
    if payload.train is not None:
        settings["train"] = {name: value for name, value in payload.train.items() if name not in sizes}
    return {name: value for name, value in settings.items() if value is not None}


def sizes_of(payload: Payload) -> dict[str, Any]:
    """What may differ between two attempts of a run."""
    sizes = {
        "attempt": payload.generation,
        "nodes": payload.nodes,
        "world_size": payload.world_size,
        "micro_batch": payload.micro_batch,
        "accumulation": payload.accumulation,
    }
    return {name: value for name, value in sizes.items() if value is not None}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
