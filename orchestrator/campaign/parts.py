"""Classifies the places in a campaign's folder that this program made: names of the layout that the store records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.files.ours import Part
from dscampaign.jobs.shared.layout import MARKER

_FILES: Final = (
    r"claim(-\d+)?|re(started|size)\.json|started\.json|metrics\.jsonl|gpus-\d+\.jsonl|forward\.jsonl?|ds_config\.json"
    r"|train\.json|stop|did-not-fit-\d+\.json|(heartbeat|outcome)-\d+\.json|(reserve|hostfile)-\d+"
)
_TEMPORARY: Final = r"\.({})\.\d+\.[0-9a-f]{{8}}"
"""The name that `files.atomic_files` gives a file until it is complete."""

ATTEMPT_LEFT: Final = re.compile(rf"reserve-\d+|{_TEMPORARY.format(_FILES)}")
"""Useless files of an attempt that was killed."""

_ATTEMPT: Final = re.compile(rf"{_FILES}|{_TEMPORARY.format(_FILES)}")
_CURRENT: Final = re.compile(rf"current|{_TEMPORARY.format('current')}")
_MARKER: Final = re.compile(rf"{re.escape(MARKER)}|{_TEMPORARY.format(re.escape(MARKER))}")
_SEARCH: Final = re.compile(rf"[^.]+\.json|{_TEMPORARY.format(r'[^.]+.json')}")
_EVENTS: Final = re.compile(r"events\.out\.tfevents\..+")
_ATTEMPT_TREES: Final = frozenset({"logs", "ranks", "search", "profile"})
_FOLDERS: Final = frozenset({"runs", "batches", "searches", "tensorboard"})


@dataclass(frozen=True)
class CampaignParts:
    """Classifies the places of a campaign's folder, see `files.ours.PartOf`.

    Attributes:
        runs: by the name of a run, the names of its checkpoints' folders and of its attempts'.
        tokens: names of its job arrays.
    """

    runs: Mapping[str, Collection[str]]
    tokens: Collection[str] = field(default=())

    @classmethod
    def of(cls, runs: Sequence[RunRow], attempts: Sequence[AttemptRow]) -> CampaignParts:
        """Return the classifier of a campaign with these rows."""
        names = {run.id: run.name for run in runs}
        known: dict[str, set[str]] = defaultdict(set)
        for run in runs:
            known[run.name].add(f"checkpoints/{run.config_hash}")
        for row in attempts:
            known[names[row.run_id]] |= {f"checkpoints/{row.config_hash}", f"g{row.generation:04d}"}
        return cls(known, {row.token for row in attempts})

    def __call__(self, parts: tuple[str, ...]) -> Part | None:
        """Return how much of the place with these names is ours."""
        match parts:
            case [name]:
                return Part.FOLDER if name in _FOLDERS else _file(_MARKER, name)
            case ["runs", run, *inner] if run in self.runs:
                return _in_run(inner, self.runs[run]) if inner else Part.FOLDER
            case ["batches", token] if token in self.tokens:
                return Part.TREE
            case ["searches", name]:
                return _file(_SEARCH, name)
            case ["tensorboard", run, *inner] if run in self.runs or run.rpartition("-")[0] in self.runs:
                return _file(_EVENTS, inner[0]) if inner else Part.FOLDER
        return None


def _in_run(names: Sequence[str], known: Collection[str]) -> Part | None:
    name, *inner = names
    if name == "forward":
        return Part.TREE
    if name == "checkpoints":
        return (Part.TREE if f"checkpoints/{inner[0]}" in known else None) if inner else Part.FOLDER
    if name not in known:
        return _file(_CURRENT, name)
    if not inner:
        return Part.FOLDER
    return Part.TREE if inner[0] in _ATTEMPT_TREES else _file(_ATTEMPT, inner[0])


def _file(pattern: re.Pattern[str], name: str) -> Part | None:
    return Part.FILE if pattern.fullmatch(name) else None
