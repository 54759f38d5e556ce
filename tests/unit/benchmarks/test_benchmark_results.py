"""What is kept of a benchmark says which version it measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dscampaign.benchmarks.shared import results


def git(folder: Path, *arguments: str) -> str:
    person = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(folder), *person, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_commit_is_told_and_whether_files_differ_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "REPOSITORY", tmp_path)
    assert results.commit_id() is None
    (tmp_path / "file").write_text("as it was")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert results.commit_id() == commit
    (tmp_path / "file").write_text("changed")
    assert results.commit_id() == f"{commit}-dirty"
