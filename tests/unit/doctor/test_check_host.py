"""The host on which `campaign doctor` is called, and the verdict that follows from what is there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dscampaign.db.errors import SchemaMismatch, StoreUnreachable
from dscampaign.files import file_systems
from dscampaign.orchestrator.campaign.location import Location
from dscampaign.orchestrator.doctor import check_host
from dscampaign.orchestrator.doctor.check import At, Check, Severity, exit_code
from dscampaign.orchestrator.doctor.check_host import folder_checks, host_checks, sqlite_check, store_checks
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.storage import require_room
from dscampaign.orchestrator.settings import Settings

AT = At("store")


@pytest.fixture
def place(tmp_path: Path) -> Location:
    (tmp_path / "campaign").mkdir(mode=0o700)
    folder = tmp_path / "campaign"
    return Location(Settings(folder, f"sqlite:///{folder}/campaign.db", 0, 0.0, False, ()), ())


def by_id(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.id: check for check in checks}


def on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder is on that kind of file system."""
    monkeypatch.setattr(check_host, "file_system", lambda _path: kind)


def test_a_fit_host_has_nothing_to_do_and_nothing_is_left_behind(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("ext4", monkeypatch)
    (valued := place.settings.dir.parent / "valued").write_text("of the user")
    (planted := place.settings.dir / ".probe.tmp").symlink_to(valued)
    found = by_id(host_checks(place, []))
    assert {check.verdict for check in found.values()} == {Severity.OK}
    assert "campaign submit" in found["store.reachable"].seen  # which makes the database
    assert list(place.settings.dir.iterdir()) == [planted]
    assert valued.read_text() == "of the user"


# -- the folder --------------------------------------------------------------------------------------------------------


def failing(number: int) -> Callable[[Path], None]:
    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_folder_that_takes_no_files_is_a_problem_and_all_that_is_said_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "try_writing", failing(errno.EROFS))
    [found] = folder_checks(tmp_path / "to/be/made")
    assert (found.id, found.verdict) == ("folder.writable", Severity.PROBLEM)
    assert found.seen == f"{tmp_path}/to/be/made, to be created in {tmp_path}: Read-only file system"
    assert found.next.startswith("choose a folder that you can write to")
    monkeypatch.setattr(file_systems, "try_writing", failing(errno.ENOSPC))
    assert next(folder_checks(tmp_path)).next == "free space there: `campaign gc` deletes files that no result needs"
    with pytest.raises(Unreachable, match="No space left"):
        require_room(tmp_path)


def test_a_store_that_others_can_write_is_a_problem(place: Location) -> None:
    place.open(create=True).close()
    assert "store.writable" not in by_id(host_checks(place, []))
    (place.settings.dir / "campaign.db").chmod(0o666)
    found = by_id(host_checks(place, []))
    assert (found["store.reachable"].verdict, found["store.writable"].verdict) == (Severity.OK, Severity.PROBLEM)
    assert "others can write to" in found["store.writable"].seen


def test_a_folder_without_hard_links_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, _text: str) -> bool:
        raise OSError(95, "Operation not supported", path)

    monkeypatch.setattr(check_host, "create_exclusively", refused)
    assert "Operation not supported" in by_id(folder_checks(tmp_path))["folder.links"].seen
    monkeypatch.setattr(check_host, "create_exclusively", lambda _path, _text: True)
    assert "both create the same file" in by_id(folder_checks(tmp_path))["folder.links"].seen


def test_a_full_disk_is_a_warning(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_id(host_checks(place, []))["folder.space"].verdict is Severity.OK
    usage = shutil.disk_usage(place.settings.dir)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10**9))
    assert by_id(host_checks(place, []))["folder.space"].verdict is Severity.WARNING


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "slurm", "verdict"),
    [
        ("nfs4", False, Severity.WARNING),
        ("lustre", False, Severity.WARNING),
        ("", False, Severity.WARNING),  # not known: counts as a network's
        ("ext4", False, Severity.OK),
        ("ext4", True, Severity.OK),
    ],
)
def test_where_a_sqlite_file_lies(kind: str, slurm: bool, verdict: Severity) -> None:
    found = sqlite_check(kind, AT, slurm=slurm)
    assert found.verdict is verdict
    assert ("PostgreSQL" in found.next) == (verdict is not Severity.OK)


def test_a_store_that_does_not_answer_is_away_and_one_of_another_version_is_not(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(error: Exception) -> list[Check]:
        def fail(_place: Location) -> None:
            raise error

        monkeypatch.setattr(Location, "open", fail)
        return [check for check in store_checks(place, slurm=False) if check.id == "store.reachable"]

    assert exit_code(raises(StoreUnreachable("connection refused"))) == 3
    [older] = raises(SchemaMismatch("0001", "0002"))
    assert older.next == "`campaign db upgrade`"
    assert exit_code([older]) == 1
