"""What a shell offers: names from the store, templates, fields; nothing, and no message, where something fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from dscampaign.orchestrator.cli.completion import SHELLS
from dscampaign.orchestrator.cli.main import campaign, main
from dscampaign.tests.support.cli_world import make_world

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    make_world(tmp_path)
    (tmp_path / "other.yaml").touch()


def offered(*words: str) -> list[str]:
    shell = ShellComplete(campaign, {}, "campaign", "_CAMPAIGN_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("status", "s"), ["sweep"]),
        (("status", "o"), ["other.yaml"]),
        (("explain", "sweep", "b"), ["bad"]),
        (("explain", "b"), ["bad"]),  # the only campaign need not be named
        (("cancel", "sweep", "bad", "b"), []),  # once is enough
        (("explain", "nowhere", "b"), []),
        (("compare", "sweep", "sma"), ["small"]),
        (("recommend", "sweep", "--baseline", "do"), ["done"]),
        (("init", "--from", "five-strategies-"), ["five-strategies-next"]),
        (
            ("plan", "x.yaml", "--set", "train.prec"),
            [f"train.precision={word}" for word in ["fp32", "tf32", "bf16", "fp16"]],
        ),
        (("plan", "x.yaml", "--set", "train.precision=b"), ["train.precision=bf16"]),
        (("plan", "x.yaml", "--set", "train.compile="), ["train.compile=true", "train.compile=false"]),
        (("plan", "x.yaml", "--set", "retry.hang"), ["retry.hang_factor=", "retry.hang_min_s="]),
    ],
)
def test_what_is_offered(words: tuple[str, ...], names: list[str]) -> None:
    assert offered(*words) == names


def test_nothing_is_offered_or_said_where_the_store_cannot_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    Path("broken").mkdir()
    Path("broken/campaign.db").write_text("no database")
    assert offered("explain", "--dir", "broken", "sweep", "b") == []
    assert offered("status", "--store", "postgresql://me@127.0.0.1:1/x", "s") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_and_help_says_how_to_install_it(shell: str, capsys: Output) -> None:
    assert main(["completion", shell]) == 0
    assert "_CAMPAIGN_COMPLETE" in capsys.readouterr().out
    assert main(["completion", "--help"]) == 0
    assert f"campaign completion {shell}" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "campaign completion" in capsys.readouterr().out
