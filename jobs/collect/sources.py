"""Sources of metrics: the interface, and the files that other libraries keep of a training."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dscampaign.db.storable import MAX_WHOLE
from dscampaign.files.atomic_files import load_json

from .event_files import EventFile, Scalar
from .lines import Line
from .metric_names import metric_name
from .places import Places

SEARCH_S: Final = 10.0
"""Between two searches for files."""
_REMARKED: Final = sys.maxsize
"""In place of the newest step of a value that went back."""


class MetricSource:
    """A source of an attempt's metrics."""

    kind = ""
    """A word for programs."""
    within_s = 0.0
    """A line with a time may have been seen this much later than it was written."""
    description = ""
    """For people."""

    def note(self) -> None:
        """Look whether something has come, for the sake of its time; cheap. Raises OSError if that fails for now."""

    def read(self, max_bytes: int, *, last: bool) -> tuple[list[Line], bool]:
        """Return the new lines, and whether there may be more.

        Args:
            max_bytes: to read at once.
            last: whether the script has ended.

        Raises:
            OSError: it cannot be read now.
        """
        raise NotImplementedError

    def remarks(self) -> list[str]:
        """Return remarks for people, each once."""
        return []


class TensorBoard(MetricSource):
    """Event files of the first rank."""

    kind = "tensorboard"

    def __init__(self, places: Places, pid: Callable[[], int | None], since_s: float) -> None:
        self._places, self._pid, self._since_s = places, pid, since_s
        self._files: dict[Path, EventFile] = {}
        self._newest: dict[tuple[Path, str], int] = {}
        self._remarks: list[str] = []
        self._searched_s = -SEARCH_S

    def read(self, max_bytes: int, *, last: bool) -> tuple[list[Line], bool]:
        """Return one line a step and file."""
        if last or time.monotonic() - self._searched_s >= SEARCH_S:
            self._searched_s = time.monotonic()
            for path in self._places.event_files(self._pid()):
                self.description = self.description or f"TensorBoard's event files in {path.parent}"
                self._files.setdefault(path, EventFile(path))
        lines: list[Line] = []
        more = False
        for path, file in self._files.items():
            scalars, moved = file.read(max_bytes)
            more |= moved
            steps: dict[int, Line] = {}
            for scalar in scalars:
                if scalar.ts_s < self._since_s or "/Samples/" in scalar.tag:  # DeepSpeed counts samples, not steps
                    continue
                self._look_back(path, scalar)
                line = steps.setdefault(scalar.step, {"step": scalar.step, "ts": scalar.ts_s})
                line.setdefault(metric_name(scalar.tag, folder=path.parent.name), scalar.value)
            lines += steps.values()
        return lines, more

    def remarks(self) -> list[str]:
        """Return that steps begin again within a file."""
        remarks, self._remarks = self._remarks[-1:], []
        return remarks

    def _look_back(self, path: Path, scalar: Scalar) -> None:
        newest = self._newest.get((path, scalar.tag), -1)
        if scalar.step < newest < _REMARKED:
            self._remarks.append(
                f"{scalar.tag} of step {scalar.step:,} comes again after step {newest:,} in {path.name}; steps that"
                " were passed before are not read again: let the script count steps over all epochs"
            )
            newest = _REMARKED
        if scalar.step <= MAX_WHOLE:
            self._newest[path, scalar.tag] = max(scalar.step, newest)


class TrainerState(MetricSource):
    """`trainer_state.json`, which Transformers' Trainer saves with each checkpoint: its whole log."""

    kind = "trainer_state"

    def __init__(self, places: Places, before: Places) -> None:
        self._places = places
        self._seen = {key for path in before.trainer_states() for key in _history(path)}
        self._searched_s = -SEARCH_S

    def read(self, max_bytes: int, *, last: bool) -> tuple[list[Line], bool]:  # noqa: ARG002 - it is read whole
        """Return the entries that were not there when the attempt began, each once."""
        if not last and time.monotonic() - self._searched_s < SEARCH_S:
            return [], False
        self._searched_s = time.monotonic()
        entries = {}
        for newest in self._places.trainer_states()[:1]:
            self.description = str(newest)
            entries = {key: entry for key, entry in _history(newest).items() if key not in self._seen}
        self._seen |= entries.keys()
        return [_values(entry) for entry in entries.values()], False


def _history(path: Path) -> dict[str, dict[str, Any]]:
    with suppress(OSError, ValueError, RecursionError):
        history = (load_json(path) or {}).get("log_history")
        if isinstance(history, list):
            entries = (entry for entry in history if isinstance(entry, dict) and _is_whole(entry.get("step")))
            return {json.dumps(entry, sort_keys=True): entry for entry in entries}
    return {}


def _is_whole(value: object) -> bool:
    """Return whether it is a whole number that a float can hold: JSON's have no limit."""
    return isinstance(value, int) and abs(value) <= sys.float_info.max


def _values(entry: dict[str, Any]) -> Line:
    numbers = {name: float(value) for name, value in entry.items() if isinstance(value, float) or _is_whole(value)}
    return numbers if "train_runtime" in numbers else {metric_name(name): value for name, value in numbers.items()}
