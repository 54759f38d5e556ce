"""Whom a job believes: what only its own user can have written."""

from pathlib import Path

import pytest

from dscampaign.db.ownership import distrust


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """root/campaign/batch, all private."""
    tmp_path.chmod(0o700)
    (tmp_path / "campaign" / "batch").mkdir(parents=True)
    for folder in (tmp_path / "campaign", tmp_path / "campaign" / "batch"):
        folder.chmod(0o700)
    return tmp_path


def test_private_folders_are_believed(tree: Path) -> None:
    assert distrust(tree / "campaign" / "batch", tree) == ""
    (tree / "campaign").chmod(0o755)
    assert distrust(tree / "campaign" / "batch", tree) == ""


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o770, 0o777, 0o1777])
@pytest.mark.parametrize("place", ["campaign", "campaign/batch"])
def test_a_folder_that_others_can_write_is_not(tree: Path, place: str, mode: int) -> None:
    (tree / place).chmod(mode)
    assert distrust(tree / "campaign" / "batch", tree) == f"others can write to {tree / place}"


def test_a_public_root_is_good_enough_only_where_nobody_can_replace_what_is_in_it(tree: Path) -> None:
    tree.chmod(0o1777)
    assert distrust(tree / "campaign" / "batch", tree) == ""
    tree.chmod(0o777)
    assert distrust(tree / "campaign" / "batch", tree) == f"others can write to {tree}"


def test_a_folder_of_somebody_else_is_not(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert "belongs to user" in distrust(tree / "campaign" / "batch", tree)


def test_a_group_of_one_s_own_is_nobody_else(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "campaign").chmod(0o770)
    monkeypatch.setattr("dscampaign.db.ownership._only_us", lambda _gid: True)
    assert distrust(tree / "campaign" / "batch", tree) == ""
    (tree / "campaign").chmod(0o777)
    assert "others can write" in distrust(tree / "campaign" / "batch", tree)


def test_the_root_must_be_above(tree: Path) -> None:
    with pytest.raises(ValueError, match="is not above"):
        distrust(tree, tree / "campaign")
