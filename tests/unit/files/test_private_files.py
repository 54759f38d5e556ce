"""Who may read what this program makes: its user alone, or a group where the folder was opened to it."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db.store import Store
from dscampaign.files.private_files import make_below, make_folder, make_private, open_private

DEFAULT_LIST = "system.posix_acl_default"
SOMEBODY = 12345


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def lists(path: Path) -> list[str]:
    return [name for name in os.listxattr(path) if name.startswith("system.posix_acl")]


def hand_down(folder: Path) -> None:
    """What `setfacl -d -m u:12345:rwx,g:12345:rwx FOLDER` does, as administrators do for folders of a project."""
    entries = [(0x01, 7, -1), (0x02, 7, SOMEBODY), (0x04, 7, -1), (0x08, 7, SOMEBODY), (0x10, 7, -1), (0x20, 5, -1)]
    packed = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(folder, DEFAULT_LIST, struct.pack("<I", 2) + packed)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM):
            pytest.skip(f"LEFT OUT: {folder} is on a file system without access control lists")
        raise


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    previous = os.umask(request.param)
    yield request.param
    os.umask(previous)


@pytest.fixture(params=["plain", "listed", "setgid"])
def above(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder in which this program makes others; in that of a project all new ones are open to its members."""
    folder = tmp_path / "project"
    folder.mkdir()
    folder.chmod(0o2775 if request.param == "setgid" else 0o775)
    if request.param == "listed":
        hand_down(folder)
    return folder


def test_what_is_made_is_the_user_s_alone(above: Path, umask: int) -> None:
    make_private(above / "c" / "runs")
    make_below(above / "c" / "runs", above / "c" / "runs" / "r" / "g0001")
    with open(above / "c" / "runs" / "r" / "x", "w", opener=open_private) as file:
        file.write("x")
    made = sorted(above.rglob("*"))
    assert [path.name for path in made] == ["c", "runs", "r", "g0001", "x"]
    assert {mode(path) & 0o777 for path in made} == {0o700, 0o600}
    assert not [path for path in made if lists(path)]


def test_what_a_script_makes_in_a_private_folder_inherits_no_access_list(tmp_path: Path, umask: int) -> None:
    """A rank's script knows nothing of all this, and opens its files as everybody does."""
    hand_down(tmp_path)
    make_private(tmp_path / "c")
    (tmp_path / "c" / "log").write_text("x")
    assert not lists(tmp_path / "c" / "log")
    assert mode(tmp_path / "c" / "log") == 0o666 & ~umask


def test_a_list_that_is_handed_down_opens_no_store(tmp_path: Path) -> None:
    hand_down(tmp_path)
    Store.open(f"sqlite:///{tmp_path}/new/campaign.db", create=True).close()
    Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True).close()
    assert mode(tmp_path / "new") & 0o777 == 0o700
    assert not lists(tmp_path / "new" / "campaign.db")
    assert mode(tmp_path / "campaign.db") & 0o077 == 0  # the mask: what the list names has no effect


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o775)
    make_private(there)
    make_folder(there)
    assert mode(there) == 0o775
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


@pytest.mark.parametrize("umask", [0o000, 0o077], indirect=True)
def test_what_is_made_in_an_opened_folder_is_open_for_reading(tmp_path: Path, umask: int) -> None:
    opened = tmp_path / "runs"
    opened.mkdir()
    opened.chmod(0o2750)
    make_below(opened, opened / "r" / "g0001")
    make_below(opened / "r", opened / "r" / "checkpoints" / "hash", closed=True)
    with open(opened / "r" / "x", "w", opener=open_private) as file:
        file.write("x")
    os.close(open_private(opened / "r" / "secret", os.O_WRONLY | os.O_CREAT, closed=True))
    assert mode(opened / "r") == mode(opened / "r" / "g0001") == 0o2750
    assert mode(opened / "r" / "x") == 0o640
    assert mode(opened / "r" / "checkpoints") & 0o777 == mode(opened / "r" / "checkpoints" / "hash") & 0o777 == 0o700
    assert mode(opened / "r" / "secret") == 0o600


def test_a_project_s_folder_opens_nothing_of_a_campaign(tmp_path: Path) -> None:
    """That its members may read there is no word about a campaign in it."""
    tmp_path.chmod(0o2775)
    make_private(tmp_path / "c")
    make_below(tmp_path / "c", tmp_path / "c" / "runs")
    assert mode(tmp_path / "c") & 0o777 == mode(tmp_path / "c" / "runs") & 0o777 == 0o700
