"""Specs in files, read as `campaign validate` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.load import runs_of_text
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.orchestrator.spec.yaml_source import read_text


def load_spec(path: Path | str, overrides: Iterable[str] = (), *, local_gpus: int = 0) -> Spec:
    """Return the spec alone."""
    return load_runs(path, overrides, local_gpus=lambda: local_gpus)[0]


def load_runs(path: Path | str, overrides: Iterable[str] = (), **how: Any) -> tuple[Spec, tuple[Run, ...]]:
    """Return the spec and its runs."""
    return runs_of_text(read_text(Path(path)), Path(path), overrides, **how)
