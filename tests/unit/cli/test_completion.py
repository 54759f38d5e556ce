"""Shell completion: names from the store; nothing, and no message, if something fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from dscampaign.db import bulk, queries
from dscampaign.db.records import NewRun
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import campaign, main
from dscampaign.tests.support.cli_world import make_world

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _world(tmp_path: Path) -> None:
    make_world(tmp_path)


def offered(*words: str) -> list[str]:
    shell = ShellComplete(campaign, {}, "campaign", "_CAMPAIGN_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("status", "s"), ["sweep", "small"]),
        (("explain", "sweep", "b"), ["bad"]),
        (("weights", "sweep", "b"), ["bad"]),
        (("explain", "b"), ["bad"]),  # the only campaign need not be named
        (("cancel", "sweep", "bad", "b"), []),  # once is enough
        (("explain", "nowhere", "b"), ["bad"]),
        (("compare", "sweep", "sma"), ["small"]),
        (("init", "--scale", ""), ["full", "smoke"]),
    ],
)
def test_names_are_offered(words: tuple[str, ...], names: list[str]) -> None:
    assert offered(*words) == names


@pytest.mark.parametrize("word", ["", "s"])
def test_no_name_is_offered_that_a_shell_may_run(word: str, tmp_path: Path) -> None:
    hostile = (
        "sweep;id>x;:",
        "sweep$(id)",
        "sweep`id`",
        "sweep two",
        "sweep\nid",
        "sweep'",
        "sw\u00e9e",
        "-y",
        "~root",
    )
    store = Store.open(f"sqlite:///{tmp_path}/campaign/campaign.db")
    with store.write() as conn:
        sweep = queries.campaign_by_name(conn, "sweep")
        assert sweep is not None
        for ordinal, name in enumerate(hostile):
            queries.insert_campaign(conn, name=name, spec="", spec_hash="", dir="/d", executor="local")
            bulk.insert_runs(conn, sweep.id, [NewRun(name, {}, {}, name, 10 + ordinal)])
    store.close()
    for given in (("status", word), ("explain", "sweep", word), ("compare", word)):
        assert not set(hostile) & set(offered(*given)), given
    assert "sweep" in offered("status", "s")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_help_shows_how_to_install_it(shell: str, capsys: Output) -> None:
    assert main(["completion", shell]) == 0
    assert "_CAMPAIGN_COMPLETE" in capsys.readouterr().out
    assert main(["completion", "--help"]) == 0
    assert f"campaign completion {shell}" in capsys.readouterr().out
