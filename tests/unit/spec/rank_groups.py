"""Specs whose ranks work on the same samples in groups of four, for the tests of both kinds of groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.orchestrator.spec.load import load_spec

EIGHT = {"nodes": 2, "gpus_per_node": "h100:4"}


def runs_of(field: str, tmp_path: Path, *, slurm: dict[str, Any] | None = None, **changes: Any) -> tuple[Run, ...]:
    """Of a spec with this field of `train`, and with these changes."""
    given = {"model": "gpt2", "dataset": "d", "global_batch": 64, "steps": 10, field: 4}
    train = {**given, **changes.pop("train", {})}
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"name": "s", "slurm": slurm or EIGHT, "train": train, **changes}))
    return expand(load_spec(spec))


def problems_of(field: str, tmp_path: Path, **changes: Any) -> dict[str, str]:
    """Each with its hint, by field."""
    with pytest.raises(SpecError) as caught:
        runs_of(field, tmp_path, **changes)
    return {problem.field: f"{problem.message} | {problem.hint}" for problem in caught.value.problems}
