"""How much of a run a tool has, over all its attempts, so that they become one curve there."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..shared.files import make_private, read_json, write_atomically


@dataclass
class State:
    """What is known of the run in one tool.

    Attributes:
        key: made up before the tool was first asked for anything, so that a run whose id got lost is found again.
        run_id: the tool's own id of the run, "" before it has one.
        where: address or folder of the run in the tool.
        offsets: for each attempt, the bytes of its spool that the tool has.
        marks: for each metric, the highest step that the tool has.
    """

    key: str
    run_id: str = ""
    where: str = ""
    offsets: dict[int, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> State:
        """What ``save`` wrote, or a new run."""
        raw = read_json(path)
        if raw is None:
            return cls(uuid.uuid4().hex[:12])
        offsets = {int(generation): int(offset) for generation, offset in raw["offsets"].items()}
        return cls(raw["key"], raw["run_id"], raw["where"], offsets, dict(raw["marks"]))

    def save(self, path: Path) -> None:
        """Writes it, complete or not at all.

        Raises:
            OSError: the shared folder does not take it.
        """
        make_private(path.parent)
        write_atomically(path, json.dumps(asdict(self)))
