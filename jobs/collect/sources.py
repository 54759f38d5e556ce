"""Files that other libraries keep of a training, as sources of metrics."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dscampaign.db.storable import MAX_WHOLE
from dscampaign.files.atomic_files import load_json

from .event_files import EventFile, Scalar
from .forms import Form
from .lines import Line
from .metric_names import metric_name
from .output import SEEN_WITHIN_S, Output
from .places import Places

SEARCH_S: Final = 10.0
"""Between two searches for files."""
_TOLD: Final = sys.maxsize
"""In place of the newest step of a value that went back."""


class MetricSource(ABC):
    """Where the metrics of an attempt may come from."""

    kind: str
    """A word for programs."""

    within_s = 0.0
    """How much later than it was written a line may have been seen that has a time."""

    @property
    @abstractmethod
    def said(self) -> str:
        """What it is, for people."""

    def note(self) -> None:  # noqa: B027 - most sources say themselves when it was
        """Looks whether something has come, for the sake of its time; cheap.

        Raises:
            OSError: it cannot be seen now.
        """

    @abstractmethod
    def read(self, max_bytes: int, *, last: bool) -> tuple[list[Line], bool]:
        """What has come since it was last read, and whether there may be more.

        Raises:
            OSError: it cannot be read now.
        """

    def remarks(self) -> list[str]:
        """What people should know of what was read, each once."""
        return []


class Printed(MetricSource):
    """The output of the first rank."""

    kind = "printed"
    within_s = SEEN_WITHIN_S

    def __init__(self, logs: Path, form: Form) -> None:
        self.form = form
        self._output = Output(logs, form)

    @property
    def said(self) -> str:
        """As its form says."""
        return self.form.said

    def note(self) -> None:
        """The length of the output."""
        self._output.note()

    def read(self, max_bytes: int, *, last: bool) -> tuple[list[Line], bool]:
        """Lines, some of them with the time when they were seen."""
        return self._output.read(max_bytes, last=last)

    def remarks(self) -> list[str]:
        """As its form has them."""
        return self.form.remarks()


class TensorBoard(MetricSource):
    """Event files of the first rank."""

    kind = "tensorboard"

    def __init__(self, places: Places, pid: Callable[[], int | None], since_s: float) -> None:
        self._places, self._pid, self._since_s = places, pid, since_s
        self._files: dict[Path, EventFile] = {}
        self._newest: dict[tuple[Path, str], int] = {}
        self._anew = ""
        self._searched_s = -SEARCH_S

    @property
    def said(self) -> str:
        """The folder of the first file."""
        return f"TensorBoard's event files in {next(iter(self._files)).parent}"

    def read(self, max_bytes: int, *, last: bool) -> tuple[list[Line], bool]:
        """One line a step and file."""
        if last or time.monotonic() - self._searched_s >= SEARCH_S:
            self._searched_s = time.monotonic()
            for path in self._places.event_files(self._pid()):
                self._files.setdefault(path, EventFile(path))
        lines: list[Line] = []
        more = False
        for path, file in self._files.items():
            scalars, moved = file.read(max_bytes)
            more |= moved
            steps: dict[int, Line] = {}
            for scalar in scalars:
                if (
                    scalar.ts_s >= self._since_s and "/Samples/" not in scalar.tag
                ):  # DeepSpeed counts samples, not steps
                    self._look_back(path, scalar)
                    line = steps.setdefault(scalar.step, {"step": scalar.step, "ts": scalar.ts_s})
                    line.setdefault(metric_name(scalar.tag, folder=path.parent.name), scalar.value)
            lines += steps.values()
        return lines, more

    def remarks(self) -> list[str]:
        """Of steps that begin again within a file."""
        anew, self._anew = self._anew, ""
        return [anew] if anew else []

    def _look_back(self, path: Path, scalar: Scalar) -> None:
        newest = self._newest.get((path, scalar.tag), -1)
        if scalar.step < newest < _TOLD:
            self._anew = (
                f"{scalar.tag} of step {scalar.step:,} comes again after step {newest:,} in {path.name}; steps that"
                " were passed before are not read again: let the script count steps over all epochs"
            )
            newest = _TOLD
        if scalar.step <= MAX_WHOLE:
            self._newest[path, scalar.tag] = max(scalar.step, newest)


class TrainerState(MetricSource):
    """What Transformers' Trainer saves with each checkpoint: all that it has logged, also before the attempt began."""

    kind = "trainer_state"

    def __init__(self, places: Places, before: Places) -> None:
        self._places = places
        self._known = {key for path in before.trainer_states() for key in _history(path)}
        self._path: Path | None = None
        self._searched_s = -SEARCH_S

    @property
    def said(self) -> str:
        """The newest file."""
        return str(self._path)

    def read(self, max_bytes: int, *, last: bool) -> tuple[list[Line], bool]:  # noqa: ARG002 - it is read whole
        """The entries that were not there when the attempt began, each once."""
        if not last and time.monotonic() - self._searched_s < SEARCH_S:
            return [], False
        self._searched_s = time.monotonic()
        newest = next(iter(self._places.trainer_states()), None)
        self._path = newest or self._path
        new = {key: entry for key, entry in _history(newest).items() if key not in self._known} if newest else {}
        self._known |= new.keys()
        return [_values(entry) for entry in new.values()], False


def _history(path: Path) -> dict[str, dict[str, Any]]:
    with suppress(OSError, ValueError, RecursionError):
        history = (load_json(path) or {}).get("log_history")
        if isinstance(history, list):
            entries = (entry for entry in history if isinstance(entry, dict) and _is_whole(entry.get("step")))
            return {json.dumps(entry, sort_keys=True): entry for entry in entries}
    return {}


def _is_whole(value: object) -> bool:
    """A whole number that a float can hold: JSON's have no limit."""
    return isinstance(value, int) and abs(value) <= sys.float_info.max


def _values(entry: dict[str, Any]) -> Line:
    numbers = {name: float(value) for name, value in entry.items() if isinstance(value, float) or _is_whole(value)}
    return numbers if "train_runtime" in numbers else {metric_name(name): value for name, value in numbers.items()}
