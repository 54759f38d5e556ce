"""Files that are complete or absent, and created by exactly one."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dscampaign.files.atomic_files import create_exclusively, read_json, write_atomically


def test_a_file_is_replaced_as_a_whole_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_exactly_one_of_many_creates_a_file(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: create_exclusively(path, f"{i}"), range(40)))
    assert won.count(True) == 1
    assert path.read_text() == str(won.index(True))
    assert [p.name for p in tmp_path.iterdir()] == ["claim"]


def test_a_link_whose_answer_was_lost_is_still_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def repeated(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(target)  # what an NFS server says to a request that it has already carried out

    monkeypatch.setattr(os, "link", repeated)
    assert create_exclusively(tmp_path / "claim", "mine")
    monkeypatch.undo()
    assert not create_exclusively(tmp_path / "claim", "theirs")
    assert (tmp_path / "claim").read_text() == "mine"


def test_an_object_is_read_and_an_absent_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": 1}')
    assert read_json(tmp_path / "x") == {"a": 1}
    assert read_json(tmp_path / "y") is None
    assert read_json(tmp_path) is None
