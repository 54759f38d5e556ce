"""What the reconciler hands to the agents."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from dscampaign.jobs.layout import CampaignPaths, payload_file
from dscampaign.jobs.payload import Payload

from .attempt import make_payload


def test_a_payload_is_read_as_it_was_written(tmp_path: Path) -> None:
    payload = make_payload(tmp_path, env={"A": "1"}, train={"steps": 3}, nodes=2)
    payload.write(payload_file(tmp_path, 4))
    assert Payload.read(tmp_path / "4.json") == payload
    assert payload.world_size == 4
    assert stat.S_IMODE((tmp_path / "4.json").stat().st_mode) == 0o600


def test_a_payload_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    make_payload(tmp_path).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    with pytest.raises(ValueError, match=r"another version of dscampaign: \['later'\]"):
        Payload.read(path)


def test_a_missing_payload_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Payload.read(tmp_path / "0.json")


def test_where_everything_lies() -> None:
    paths = CampaignPaths(Path("/shared"), "c")
    attempt = paths.run("r").attempt(12)
    assert str(attempt.metrics) == "/shared/c/runs/r/g0012/metrics.jsonl"
    assert str(paths.run("r").checkpoints("ab12")) == "/shared/c/runs/r/checkpoints/ab12"
    assert str(payload_file(paths.batch("abc"), 3)) == "/shared/c/batches/abc/3.json"
    assert str(paths.data) == "/shared/data"
