"""Files that a user asks for: whole or not at all, and through no link of somebody else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dscampaign.files.private_files import ACCESS_LIST
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.report.page import write
from dscampaign.orchestrator.user_files import whole_file
from dscampaign.tests.unit.files.test_ownership import set_acl

SOMEBODY = 4711
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="LEFT OUT: only root can make a link of another user's")


def link_of_another(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.chown(path, SOMEBODY, SOMEBODY, follow_symlinks=False)
    return path


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_as_a_whole_and_is_as_open_as_the_user_s_files_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    with whole_file(path) as stream:
        stream.write("é\n")
        assert path.read_text() == "old"
    assert (path.read_bytes(), names(tmp_path)) == ("é\n".encode(), ["a.csv"])
    previous = os.umask(0)
    os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~previous
    path.chmod(0o600)
    with whole_file(path):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    set_acl(path, mask=6)
    with whole_file(path):
        pass
    assert ACCESS_LIST in os.listxattr(path)


@as_root
def test_a_file_of_another_keeps_its_owner_and_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.touch(mode=0o640)
    os.chown(path, SOMEBODY, SOMEBODY)
    with whole_file(path):
        pass
    assert (path.stat().st_uid, path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (SOMEBODY, SOMEBODY, 0o640)
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)  # the folders above are closed
    os.seteuid(SOMEBODY + 1)
    try:
        with pytest.raises(PermissionError), whole_file(Path("a.csv")):
            pass
    finally:
        os.seteuid(0)


def test_nothing_is_left_of_one_that_fails(tmp_path: Path) -> None:
    with pytest.raises(TypeError), whole_file(tmp_path / "a", binary=True) as stream:
        stream.write("no bytes")
    assert names(tmp_path) == []


@as_root
@pytest.mark.parametrize("planted", ["", "figures", "report.html"])
def test_a_report_is_not_written_through_a_link_of_another_s(tmp_path: Path, planted: str) -> None:
    home, folder = tmp_path / "home", tmp_path / "sweep-report"
    home.mkdir()
    if planted:
        folder.mkdir()
    link_of_another(folder / planted if planted else folder, home)
    with pytest.raises(UserError, match=f"is a link to {home} that user {SOMEBODY} made"):
        write.write_files(folder, {"report.html": "x", "figures/loss.svg": "x"})
    assert names(home) == []


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    with whole_file(link, binary=True) as stream:
        stream.write(b"x")
    assert link.is_char_device()
