"""How things are printed: commands that find the campaign, lines with whole words, JSON from every command."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from sqlalchemy import update

from dscampaign.db.records import COMPLETED_EARLY
from dscampaign.db.schema import attempt
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import campaign, main
from dscampaign.orchestrator.errors import EXIT_OK
from dscampaign.orchestrator.pages.text import fold
from dscampaign.tests.support.cli_world import make_world

Output = pytest.CaptureFixture[str]
NO_DOCUMENT = frozenset(
    {
        "completion",
        "db prune",
        "db upgrade",
        "gc",
        "init",
        "logs",
        "mcp",
        "promote",
        "render",
        "rm",
        "schema",
        "serve",
        "share",
        "top",
        "weights",
    }
)
"""Commands whose output is no data."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A campaign's folder that is not where a command looks by itself."""
    make_world(tmp_path)
    (tmp_path / "campaign").rename(tmp_path / "else where")
    return tmp_path / "else where"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_every_command_that_reads_can_print_one_json_document() -> None:
    without = {name for name, command in commands(campaign) if not any("--json" in p.opts for p in command.params)}
    assert without == NO_DOCUMENT


@pytest.mark.parametrize(
    "words",
    [
        "status",
        "status --failed",
        "describe sweep",
        "describe --config",
        "explain sweep done",
        "explain sweep bad",
        "explain sweep new",
        "list",
        "report",
        "recommend",
        "compare done small",
        "export --what runs",
        "export --what steps",
        "cancel sweep done",
        "explain sweep missing",
    ],
)
def test_a_document_is_plain_and_changes_no_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, words: str
) -> None:
    """Of a campaign with runs that completed, completed early, failed and wait."""
    store = Store.open(f"sqlite:///{folder}/campaign.db")
    with store.write() as conn:
        conn.execute(
            update(attempt).where(attempt.c.failure_class == "completed").values(failure_class=COMPLETED_EARLY)
        )
    store.close()
    monkeypatch.setenv("FORCE_COLOR", "1")
    code = main([*words.split(), "--dir", str(folder)])
    capsys.readouterr()
    assert main([*words.split(), "--json", "--dir", str(folder)]) == code
    out = capsys.readouterr().out
    assert "\x1b" not in out
    if code == EXIT_OK:
        assert json.loads(out, parse_constant=pytest.fail)["schema_version"] == 1


def test_next_commands_carry_the_folder_that_was_given(folder: Path, capsys: Output) -> None:
    assert main(["status", "--dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"next: campaign explain sweep bad --dir '{folder}'\n" in out
    assert f"`campaign reconcile sweep --detach --dir '{folder}'`" in out


def test_commands_name_the_spec_and_its_overrides_where_they_are_known(folder: Path, capsys: Output) -> None:
    Path("a.py").touch()
    Path("my sweep.yaml").write_text("name: other\ncommand: a.py {x}\nmatrix: {x: [1]}\nrepeats: 70\nexecutor: local\n")
    assert main(["plan", "my sweep.yaml", "--set", "repeats=71"]) == 0
    assert "`campaign plan 'my sweep.yaml' --set repeats=71 --all`" in capsys.readouterr().out
    assert main(["status", "my sweep.yaml", "--store", "sqlite:///none.db"]) == 2
    assert "`campaign submit 'my sweep.yaml' --store sqlite:///" in capsys.readouterr().err
    assert main(["status", "--store", "sqlite:///none.db"]) == 2
    assert "`campaign submit SPEC --store sqlite:///" in capsys.readouterr().err


def test_a_relative_store_is_carried_so_that_it_holds_in_every_folder(folder: Path, capsys: Output) -> None:
    assert main(["status", "--store", "sqlite:///else where/campaign.db"]) == 0
    command = re.search(r"next: (campaign explain .*)", capsys.readouterr().out)
    assert command
    words = shlex.split(command[1])[1:]
    os.chdir("/")
    assert main(words) == 0
    assert words[-1] == f"sqlite:///{folder}/campaign.db"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_word_is_broken_and_no_line_is_too_long(width: int) -> None:
    text = "\x1b[31merror:\x1b[0m " + "some words of different lengths " * 5 + "\n  an indented line " * 3
    folded = fold(text, width)
    assert all(len(re.sub(r"\x1b\[\d+m", "", line)) <= width for line in folded.splitlines())
    assert folded.split() == text.split()


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(
    ("before", "command", "behind"),
    [
        ("  one, two and 3 more · next: ", "campaign explain sweep bad --dir /a/long/one", ""),
        ("Reconciled just now. Run ", "`campaign reconcile sweep --watch --dir /a/b/c`", " to continue."),
        ("hint: in words (", "`pip install -c constraints.txt 'dscampaign[report]'`", "), or none"),
        ("  next: ", "campaign explain sweep bad --dir /a/folder/of/a/long/name", ""),
        ("next: ", "campaign retry sweep RUN, for a run that was cancelled", ""),
    ],
)
def test_a_command_to_be_typed_is_never_broken(before: str, command: str, behind: str, colour: bool) -> None:
    line = f"{before}{command}{behind}"
    painted = f"\x1b[36m{line}\x1b[0m" if colour else line
    for width in (20, 40, 60):
        folded = re.sub(r"\x1b\[\d+m", "", fold(painted, width))
        assert any(command in row for row in folded.splitlines())
        assert all(row.strip() for row in folded.splitlines())
        assert folded.split() == line.split()
