"""Whom a campaign believes: what only its own user, or root, can have written, wherever it lies."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from grp import struct_group
from pathlib import Path
from pwd import struct_passwd

import pytest

from dscampaign.files import ownership
from dscampaign.files.ownership import Distrusted, distrust, distrust_tree, open_trusted, planted

STRANGER = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="LEFT OUT: only root can give a file to somebody else")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """root/campaign/batch, all private."""
    tmp_path.chmod(0o700)
    (tmp_path / "campaign" / "batch").mkdir(parents=True)
    for folder in (tmp_path / "campaign", tmp_path / "campaign" / "batch"):
        folder.chmod(0o700)
    return tmp_path


@pytest.fixture
def nobody_cached() -> Iterator[None]:
    ownership._private_group.cache_clear()
    yield
    ownership._private_group.cache_clear()


def why(path: Path, root: Path | None = None) -> str:
    doubt = distrust(path, root)
    return str(doubt) if doubt else ""


def test_private_folders_are_believed(tree: Path) -> None:
    assert why(tree / "campaign" / "batch", tree) == ""
    (tree / "campaign").chmod(0o755)
    assert why(tree / "campaign" / "batch", tree) == ""


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o770, 0o777, 0o1777])
@pytest.mark.parametrize("place", ["campaign", "campaign/batch"])
def test_a_folder_that_others_can_write_is_not(tree: Path, place: str, mode: int) -> None:
    (tree / place).chmod(mode)
    found = distrust(tree / "campaign" / "batch", tree)
    assert (str(found), found and found.hint) == (f"others can write to {tree / place}", f"`chmod go-w {tree / place}`")


def test_a_public_root_is_good_enough_only_where_nobody_can_replace_what_is_in_it(tree: Path) -> None:
    tree.chmod(0o1777)
    assert why(tree / "campaign" / "batch", tree) == ""
    tree.chmod(0o777)
    assert why(tree / "campaign" / "batch", tree) == f"others can write to {tree}"


def test_a_group_of_one_s_own_is_nobody_else(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "campaign").chmod(0o770)
    monkeypatch.setattr("dscampaign.files.ownership._only_us", lambda _gid: True)
    assert why(tree / "campaign" / "batch", tree) == ""
    (tree / "campaign").chmod(0o777)
    assert "others can write" in why(tree / "campaign" / "batch", tree)


# -- above the root ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_what_lies_in_a_folder_where_others_can_rename_it_is_not_believed(tree: Path, mode: int) -> None:
    tree.chmod(mode)
    assert why(tree / "campaign" / "batch", tree / "campaign") == f"others can write to {tree}"
    tree.chmod(mode | 0o1000)
    assert why(tree / "campaign" / "batch", tree / "campaign") == ""


@as_root
def test_whoever_owns_a_folder_above_could_replace_all_of_it(tree: Path) -> None:
    os.chown(tree, STRANGER, STRANGER)
    found = distrust(tree / "campaign" / "batch", tree / "campaign")
    assert str(found) == f"{tree} belongs to user {STRANGER}"
    assert "of your own" in (found.hint if found else "")


@as_root
def test_a_container_that_has_no_name_for_root_shows_system_folders_as_a_strangers(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_unnamed_owner", lambda: STRANGER)
    (tree / "file").touch()
    os.chown(tree, STRANGER, STRANGER)
    assert why(tree / "campaign", tree) == ""
    assert why(tree / "file") == ""
    os.chown(tree / "file", STRANGER, STRANGER)
    assert why(tree / "file") == f"{tree / 'file'} belongs to user {STRANGER}"
    assert "belongs to" in why(tree / "campaign", tree.parent)  # there it must be one's own


@pytest.mark.parametrize(
    ("mapped", "owner"),
    [
        ("0 1000 1\n1 100000 65536", 65534),
        ("1000 1000 1\n65533 0 1", 0),  # root has a name there
    ],
)
def test_who_stands_for_root_in_a_container(monkeypatch: pytest.MonkeyPatch, mapped: str, owner: int) -> None:
    texts = {"/proc/self/uid_map": mapped, "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, **_: texts[str(path)])
    assert ownership._unnamed_owner.__wrapped__() == owner


# -- symbolic links ----------------------------------------------------------------------------------------------------


def test_a_link_is_followed_through_every_folder(tree: Path) -> None:
    (tree / "public").mkdir()
    (tree / "public").chmod(0o777)
    (tree / "public" / "inner").mkdir(0o700)
    (tree / "link").symlink_to("public/../public/inner")
    assert why(tree / "link") == f"others can write to {tree / 'public'}"
    (tree / "absolute").symlink_to(tree / "campaign")
    assert why(tree / "absolute" / ".." / "absolute" / "batch") == ""


@as_root
def test_a_link_of_somebody_else_may_point_elsewhere_tomorrow(tree: Path) -> None:
    (tree / "link").symlink_to(tree / "campaign")
    os.chown(tree / "link", STRANGER, STRANGER, follow_symlinks=False)
    assert why(tree / "link" / "batch") == f"{tree / 'link'} belongs to user {STRANGER}"


def test_links_in_a_circle_end(tree: Path) -> None:
    (tree / "a").symlink_to("b")
    (tree / "b").symlink_to("a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        distrust(tree / "a")


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o1666])
def test_a_file_that_others_can_write_is_not(tree: Path, mode: int) -> None:
    (tree / "file").touch()
    (tree / "file").chmod(mode)
    with pytest.raises(Distrusted, match=f"others can write to {tree / 'file'}"):
        open_trusted(tree / "file")
    assert str(planted(tree / "file")) == f"others can write to {tree / 'file'}"


def test_a_pipe_keeps_nobody_waiting(tree: Path) -> None:
    os.mkfifo(tree / "pipe", 0o600)
    with pytest.raises(OSError, match="Not a regular file"):
        open_trusted(tree / "pipe")


@as_root
def test_one_file_of_a_stranger_makes_a_folder_unfit(tree: Path) -> None:
    (tree / "campaign" / "batch" / "link").symlink_to("/nowhere")
    file = tree / "campaign" / "batch" / "file"
    file.touch()
    assert distrust_tree(tree / "campaign", tree) is None
    os.chown(file, STRANGER, STRANGER)
    assert str(distrust_tree(tree / "campaign", tree)) == f"{file} belongs to user {STRANGER}"


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nobody_cached")
@pytest.mark.parametrize(
    ("name", "members", "others", "trusted"),
    [
        ("alice", [], [], True),
        ("alice", ["alice"], [], True),
        ("alice", ["bob"], [], False),  # usermod -aG alice bob
        ("alice", [], [("bob", 1001, 1000)], False),  # useradd -g alice bob
        ("staff", [], [], False),
    ],
)
def test_only_a_private_group_with_nobody_else_in_it_is_oneself(
    monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], others: list[tuple[str, int, int]], trusted: bool
) -> None:
    people = [("alice", 1000, 1000), *others]
    entries = [struct_passwd((who, "x", uid, gid, "", "/", "/bin/sh")) for who, uid, gid in people]
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("grp.getgrgid", lambda gid: struct_group((name, "x", gid, members)))
    monkeypatch.setattr("pwd.getpwuid", lambda _uid: entries[0])
    monkeypatch.setattr("pwd.getpwall", lambda: entries)
    assert ownership._only_us(1000) == trusted


@as_root
@pytest.mark.parametrize("named", ["64077", "lab", "other, lab", "lab other"])
def test_a_group_that_is_trusted_by_name_may_write_above(
    tree: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """The folder of a project, of which the head is the owner, and in which all members may write."""
    group, head = 64_077, 64_078
    monkeypatch.setattr("grp.getgrgid", lambda gid: struct_group(("lab" if gid == group else "x", "x", gid, [])))
    monkeypatch.setattr("os.getgrouplist", lambda _name, primary: [primary])
    people = {head: struct_passwd(("head", "x", head, group, "", "/", "/bin/sh"))}
    nobody = struct_passwd(("nobody", "x", 65534, 65534, "", "/", "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: people.get(uid, nobody))
    os.chown(tree, head, group)
    tree.chmod(0o2770)
    payload = tree / "campaign" / "batch"
    refused = distrust(payload, tree / "campaign")
    assert refused is not None
    assert str(refused) == f"{tree} belongs to user head"
    assert refused.hint.endswith("; if you trust all of its group as yourself, `export CAMPAIGN_TRUSTED_GROUPS=lab`")
    os.chown(tree, 0, group)
    assert why(payload, tree / "campaign") == f"others can write to {tree}"
    monkeypatch.setenv("CAMPAIGN_TRUSTED_GROUPS", named)
    assert why(payload, tree / "campaign") == ""
    os.chown(tree, head, group)
    assert why(payload, tree / "campaign") == ""
    os.chown(tree, 64_079, group)  # who is in no such group
    assert "belongs to user" in why(payload, tree / "campaign")
    os.chown(tree, 0, group)
    os.chown(payload, 0, group)  # what is run must be this user's own all the same
    payload.chmod(0o770)
    assert why(payload, tree / "campaign") == f"others can write to {payload}"
    os.chown(payload, head, group)
    assert why(payload, tree / "campaign") == f"{payload} belongs to user head"


# -- access control lists ----------------------------------------------------------------------------------------------

_OWNER, _USER, _OWNING_GROUP, _MASK, _OTHER = 1, 2, 4, 16, 32
_NOBODY = 0xFFFFFFFF


def set_acl(path: Path, user: int = STRANGER, *, mask: int = 7, group: int = 0, kind: str = "access") -> None:
    """Give a user all rights in a place, as far as the mask allows: what setfacl does, which may not be installed."""
    entries = [
        (_OWNER, 7, _NOBODY),
        (_USER, 7, user),
        (_OWNING_GROUP, group, _NOBODY),
        (_MASK, mask, _NOBODY),
        (_OTHER, 0, _NOBODY),
    ]
    raw = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", struct.pack("<I", 2) + raw)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip(f"LEFT OUT: the file system of {path} has no access control lists")
        raise


@pytest.mark.parametrize(("mask", "trusted"), [(7, False), (5, True)])
def test_a_list_that_may_give_rights_to_others_counts(
    tree: Path, monkeypatch: pytest.MonkeyPatch, mask: int, trusted: bool
) -> None:
    monkeypatch.setattr(ownership, "_only_us", lambda gid: gid == (tree / "campaign").stat().st_gid)
    set_acl(tree / "campaign", mask=mask, group=7)
    assert (tree / "campaign").stat().st_mode & 0o070 == mask << 3  # a look at the mode alone would take it for ours
    assert (distrust(tree / "campaign" / "batch", tree) is None) == trusted


def test_a_list_that_a_folder_hands_down_to_new_ones_counts(tree: Path) -> None:
    set_acl(tree / "campaign", kind="default")
    previous = os.umask(0o077)
    try:
        (tree / "campaign" / "new").mkdir()
    finally:
        os.umask(previous)
    with suppress(OSError):
        os.removexattr(tree / "campaign", "system.posix_acl_default")
    assert why(tree / "campaign" / "new", tree) == f"others can write to {tree / 'campaign' / 'new'}"
