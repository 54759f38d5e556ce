"""How things are printed: commands that find the campaign, lines with whole words, JSON from every command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dscampaign.orchestrator.cli.main import campaign, main
from dscampaign.orchestrator.cli.pages.text import Page, fold, table
from dscampaign.orchestrator.report.compare.difference import _text
from dscampaign.tests.support.cli_world import make_world

Output = pytest.CaptureFixture[str]
NO_DOCUMENT = {"completion"}
"""Commands whose output is no data."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign's folder that is not where a command looks by itself."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    make_world(tmp_path)
    (tmp_path / "campaign").rename(tmp_path / "else where")
    return tmp_path / "else where"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_every_command_can_print_one_json_document() -> None:
    without = {name for name, command in commands(campaign) if not any("--json" in p.opts for p in command.params)}
    assert without == NO_DOCUMENT


def test_next_commands_carry_the_folder_that_was_given(folder: Path, capsys: Output) -> None:
    assert main(["status", "--dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"next: campaign explain sweep bad --dir '{folder}'\n" in out
    assert f"`campaign reconcile sweep --watch --dir '{folder}'`" in out


def test_next_commands_carry_the_folder_of_the_spec(folder: Path, capsys: Output) -> None:
    Path("sweep.yaml").write_text(f"name: sweep\ndir: '{folder}'\n")
    assert main(["status", "sweep.yaml"]) == 0
    assert f"campaign explain sweep bad --dir '{folder}'\n" in capsys.readouterr().out


def test_hints_of_errors_carry_it_too(folder: Path, capsys: Output) -> None:
    assert main(["explain", "sweep", "zzz", "--dir", str(folder)]) == 2
    assert f"`campaign status sweep --dir '{folder}'` lists them" in capsys.readouterr().err


def test_nothing_is_added_where_the_next_command_finds_it_by_itself(
    folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMPAIGN_DIR", str(folder))
    assert main(["status"]) == 0
    assert "--dir" not in capsys.readouterr().out


def test_a_log_as_a_document(folder: Path, capsys: Output) -> None:
    assert main(["logs", "sweep", "bad", "-f", "--json", "--dir", str(folder)]) == 2
    assert "--follow prints no JSON" in capsys.readouterr().err


def test_a_template_as_a_document(folder: Path, capsys: Output) -> None:
    assert main(["init", "mine.yaml", "--from", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) | {"schema_version": 0} == {
        "schema_version": 0,
        "template": "local",
        "files": ["mine.yaml"],
    }


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_word_is_broken_and_no_line_is_too_long(width: int) -> None:
    text = "\x1b[31merror:\x1b[0m " + "some words of different lengths " * 5 + "\n  an indented line " * 3
    folded = fold(text, width)
    assert all(len(re.sub(r"\x1b\[\d+m", "", line)) <= width for line in folded.splitlines())
    assert folded.split() == text.split()


def test_a_pipe_is_not_folded() -> None:
    assert fold("a " * 500, None) == "a " * 500


def test_cells_are_continued_within_their_column() -> None:
    rows = [("command", "train.py --depth 6 --width 12", "train.py --depth 12 --width 12"), ("lr", "0.1", "0.2")]
    lines = table(Page(width=44), ("field", "left", "right"), rows)
    assert all(len(line) <= 44 for line in lines)
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["FIELD", "command", "lr"]
    assert " ".join(" ".join(lines).split()).count("--depth") == 2
    assert table(Page(), ("field", "left", "right"), rows)[1].endswith("train.py --depth 12 --width 12")


def test_a_command_is_compared_as_one_types_it() -> None:
    assert _text(["train.py", "--name", "a b"]) == "train.py --name 'a b'"
    assert _text([1, 2]) == "[1, 2]"
