"""A PostgreSQL store from nothing: the command says what is missing, makes it, and then works."""

from pathlib import Path

import pytest

from dscampaign.db.schema import HEAD
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.postgres import PostgresServer

SPEC = """\
name: demo
executor: local
python: /bin/false
ranks_per_node: 1
command: train.py
train: {steps: 1}
retry: {crash: 0}
"""


def test_a_postgres_store_is_made_by_db_upgrade_alone(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAMPAIGN_STORE", postgres.new_database())
    (tmp_path / "train.py").touch()
    spec = tmp_path / "demo.yaml"
    spec.write_text(SPEC)
    assert main(["submit", str(spec)]) == 2
    assert "hint: `campaign db upgrade`" in capsys.readouterr().err
    assert main(["db", "upgrade"]) == 0
    assert f"empty → {HEAD}" in capsys.readouterr().out
    assert main(["submit", str(spec), "--watch"]) == 1
    assert main(["status", "demo"]) == 0
    assert "1 failed" in capsys.readouterr().out
    assert not (tmp_path / "campaign" / "campaign.db").exists()
