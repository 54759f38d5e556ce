"""What is open to others is named: folders, code, passwords."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.files.ownership import Distrusted
from dscampaign.orchestrator.doctor import check_access
from dscampaign.orchestrator.doctor.check import At, Check, Severity
from dscampaign.orchestrator.doctor.check_access import access_checks, password_checks
from dscampaign.orchestrator.doctor.requirements import Requirements
from dscampaign.orchestrator.settings import Setting, Settings
from dscampaign.orchestrator.spec.model import RunConfig

OTHER = 64_011
"""A user that this machine need not know."""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment."""
    (tmp_path / "env/bin").mkdir(parents=True, mode=0o755)
    (tmp_path / "env/lib").mkdir(mode=0o755)
    made = tmp_path / "env/bin/python"
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign's folder with a run in it."""
    (tmp_path / "dir/sweep/runs/lr-1/checkpoints").mkdir(parents=True)
    for path in ((tmp_path / "dir"), *(tmp_path / "dir").rglob("*")):
        path.chmod(0o700)
    return tmp_path / "dir"


def settings(folder: Path, store: str = "", source: str = "default") -> Settings:
    address = store or f"sqlite:///{folder}/campaign.db"
    return Settings(folder, address, 0, 0.0, (Setting("store", address, source),))


def found(folder: Path, python: Path, *files: Path) -> dict[str, Check]:
    config = RunConfig.model_validate({"command": ["a.py"], "executor": "local", "python": str(python)})
    required = Requirements(("run",), config, 1, 0, on_gpus=False, files=tuple(map(str, files)))
    return {check.id: check for check in access_checks("host h", settings(folder), [required])}


def test_where_nothing_is_open_there_is_nothing_to_do(folder: Path, python: Path) -> None:
    assert {check.id: check.verdict for check in found(folder, python).values()} == {"host.code": Severity.OK}


@pytest.mark.parametrize("name", ["sweep", "sweep/runs", "sweep/runs/lr-1", "sweep/runs/lr-1/checkpoints"])
def test_a_folder_of_a_campaign_that_others_can_write_to_is_a_problem(folder: Path, python: Path, name: str) -> None:
    (folder / name).chmod(0o770 if name == "sweep" else 0o777)
    opened = found(folder, python)["folder.open"]
    assert (opened.verdict, opened.seen) == (Severity.PROBLEM, f"others can write to {folder / name}")
    assert f"`chmod go-w {folder / name}`" in opened.next


def test_code_that_others_can_change_is_a_warning(folder: Path, python: Path) -> None:
    script = folder.parent / "train.py"
    script.touch()
    script.chmod(0o666)
    (python.parent.parent / "lib").chmod(0o777)
    code = found(folder, python, script)["host.code"]
    assert code.verdict is Severity.WARNING
    assert all(str(path) in code.seen for path in (script, python.parent.parent / "lib"))


def test_code_of_somebody_else_s_is_a_note(folder: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's software may well belong to who looks after it."""
    theirs = Distrusted("it belongs to user sw", "use your own", OTHER)
    monkeypatch.setattr(check_access, "distrust", lambda path: theirs if path == python else None)
    code = found(folder, python)["host.code"]
    assert (code.verdict, code.seen) == (Severity.NOTE, "what runs as you is somebody else's: it belongs to user sw")


POSTGRES = "postgresql://me@db/campaigns"


def passwords(folder: Path, store: str, pgpass: Path) -> Iterator[tuple[str, Severity, str]]:
    where = settings(folder, store, "environment variable CAMPAIGN_STORE")
    for check in password_checks(At("store"), where, {"PGPASSFILE": str(pgpass)}):
        yield check.id, check.verdict, check.seen


def test_a_password_in_the_address_is_a_warning_that_does_not_repeat_it(folder: Path) -> None:
    pgpass = folder / "pgpass"
    assert list(passwords(folder, POSTGRES, pgpass)) == []
    for secret in ("postgresql://me:geheim@db/campaigns", f"{POSTGRES}?password=geheim"):
        [(name, verdict, seen)] = passwords(folder, secret, pgpass)
        assert (name, verdict) == ("store.password", Severity.WARNING)
        assert "CAMPAIGN_STORE" in seen
        assert "geheim" not in seen


def test_a_password_file_that_others_can_read_is_of_no_use(folder: Path) -> None:
    pgpass = folder / "pgpass"
    pgpass.touch(0o600)
    assert list(passwords(folder, POSTGRES, pgpass)) == []
    pgpass.chmod(0o640)
    [(name, _, seen)] = passwords(folder, POSTGRES, pgpass)
    assert (name, seen) == ("store.pgpass", f"{pgpass} has mode 0640: libpq ignores it")
