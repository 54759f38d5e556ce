"""The password of the database: every agent uses it, and nobody else gets to see it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from dscampaign.db.schema import metadata
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import begin, case
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster

SECRET = f"horse-{uuid.uuid4().hex}"
"""Not in this file: the copy of the code that the runs use holds that too."""
COMMANDS = (["status"], ["describe"], ["describe", "case-plain"], ["explain", "case-plain"], ["logs", "case-plain"])


def test_a_password_is_seen_nowhere(
    slurm: SlurmCluster,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    url = postgres.new_database().replace("postgres@", f"postgres:{SECRET}@")
    monkeypatch.setenv("CAMPAIGN_STORE", url)  # jobs inherit it
    trial = begin(tmp_path, [case("plain", "20", "--step-s=0.4", "exit=3@18")], url)
    shown: list[str] = []

    def look() -> None:
        shown.append(slurm.run("scontrol", "show", "job", "-d") + slurm.run("squeue", "-o", "%all"))
        shown.extend(_command_lines())

    done = trial.watch(each_pass=look)
    [first, *_] = done.attempts["case-plain"]
    assert first.heartbeat_s, "its agent has not pushed, so that this shows nothing"
    shown.append(slurm.run("sacct", "-nP", "-o", "all"))
    for words in COMMANDS:
        for form in ([], ["--json"] if words[0] != "logs" else []):
            main([words[0], trial.campaign.name, *words[1:], *form, "--dir", trial.campaign.dir])
    shown += [*capfd.readouterr(), *_files(tmp_path), *_rows(trial.store)]
    assert any(trial.campaign.name in text for text in shown)
    assert not [text for text in shown if SECRET in text]


def _command_lines() -> list[str]:
    """Of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has just ended
            continue
    return found


def _files(folder: Path) -> list[str]:
    return [path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()]


def _rows(store: Store) -> list[str]:
    """Everything that the database holds."""
    with store.read() as conn:
        return [str(row) for table in metadata.sorted_tables for row in conn.execute(table.select())]
