"""How things are printed: commands that find the campaign, lines with whole words, JSON from every command."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from sqlalchemy import text, update

from dscampaign.db.records import COMPLETED_EARLY
from dscampaign.db.schema import attempt
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli import output
from dscampaign.orchestrator.cli.main import campaign, main
from dscampaign.orchestrator.cli.pages.text import Page, fold, table
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import EXIT_OK, EXIT_UNSETTLED
from dscampaign.orchestrator.reconcile.lease import LeaseHeld
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.orchestrator.report.compare.difference import _text
from dscampaign.tests.support.cli_world import make_world

Output = pytest.CaptureFixture[str]
NO_DOCUMENT = frozenset(
    {"completion", "db prune", "db upgrade", "gc", "init", "logs", "promote", "render", "rm", "share", "weights"}
)
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
        "recommend --config",
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
    assert f"`campaign reconcile sweep --watch --dir '{folder}'`" in out


def test_next_commands_carry_the_folder_of_the_spec(folder: Path, capsys: Output) -> None:
    Path("sweep.yaml").write_text(f"name: sweep\ndir: '{folder}'\n")
    assert main(["status", "sweep.yaml"]) == 0
    assert f"campaign explain sweep bad --dir '{folder}'\n" in capsys.readouterr().out


def test_commands_name_the_spec_and_its_overrides_where_they_are_known(folder: Path, capsys: Output) -> None:
    Path("a.py").touch()
    Path("my sweep.yaml").write_text("name: other\ncommand: a.py {x}\nmatrix: {x: [1]}\nrepeats: 70\nexecutor: local\n")
    assert main(["plan", "my sweep.yaml", "--set", "repeats=71"]) == 0
    assert "`campaign plan 'my sweep.yaml' --set repeats=71 --all`" in capsys.readouterr().out
    assert main(["status", "my sweep.yaml", "--store", "sqlite:///none.db"]) == 2
    assert "`campaign submit 'my sweep.yaml' --store sqlite:///" in capsys.readouterr().err
    assert main(["status", "--store", "sqlite:///none.db"]) == 2
    assert "`campaign submit SPEC --store sqlite:///" in capsys.readouterr().err


def test_hints_of_errors_carry_it_too(folder: Path, capsys: Output) -> None:
    assert main(["explain", "sweep", "zzz", "--dir", str(folder)]) == 2
    assert f"`campaign status sweep --dir '{folder}'` lists them" in capsys.readouterr().err


def test_a_store_of_another_version_is_upgraded_where_it_is(folder: Path, capsys: Output) -> None:
    store = Store.open(f"sqlite:///{folder}/campaign.db")
    with store.write() as conn:
        conn.execute(text("update alembic_version set version_num = '0004'"))
    store.close()
    assert main(["status", "--dir", str(folder)]) == 2
    assert f"hint: `campaign db upgrade --dir '{folder}'`\n" in capsys.readouterr().err


def test_a_relative_store_is_carried_so_that_it_holds_in_every_folder(folder: Path, capsys: Output) -> None:
    assert main(["status", "--store", "sqlite:///else where/campaign.db"]) == 0
    command = re.search(r"next: (campaign explain .*)", capsys.readouterr().out)
    assert command
    words = shlex.split(command[1])[1:]
    os.chdir("/")
    assert main(words) == 0
    assert words[-1] == f"sqlite:///{folder}/campaign.db"


def test_nothing_is_added_where_the_next_command_finds_it_by_itself(
    folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMPAIGN_DIR", str(folder))
    assert main(["status"]) == 0
    assert "--dir" not in capsys.readouterr().out


def test_the_recommended_configuration_as_a_document(folder: Path, capsys: Output) -> None:
    for extra in ([], ["--config"]):
        assert main(["recommend", "sweep", "--json", *extra, "--dir", str(folder)]) == 0
        assert ("ds_configs" in json.loads(capsys.readouterr().out)) is bool(extra)


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


def test_a_command_that_does_not_fit_has_a_line_of_its_own() -> None:
    line = "Reconciled just now. Run `campaign reconcile sweep --watch --dir /shared/a` to continue."
    assert fold(line, 40).splitlines() == [
        "Reconciled just now. Run",
        "  `campaign reconcile sweep --watch --dir /shared/a`",
        "  to continue.",
    ]


def test_a_command_is_not_broken_within_a_cell() -> None:
    rows = [("a", "some words before `campaign retry sweep a-run` and some words behind it")]
    lines = table(Page(width=40), ("name", "because"), rows)
    assert any("`campaign retry sweep a-run`" in line for line in lines)


def test_a_small_screen_cuts_no_command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "terminal_size", lambda _: os.terminal_size((30, 12)))
    monkeypatch.setenv("PAGER", "")
    assert main(["status", "--dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"next: campaign explain sweep bad --dir '{folder}'" in out
    assert f"`campaign reconcile sweep --watch --dir '{folder}'`" in out


def test_what_a_pass_could_not_do_carries_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def broken(self: Reconciler) -> None:
        raise LeaseHeld("campaign sweep is busy", f"`{typed('status', 'sweep', '--watch')}` shows it")

    monkeypatch.setattr(Reconciler, "run_pass", broken)
    assert main(["reconcile", "sweep", "--dir", str(folder)]) == EXIT_UNSETTLED
    assert f"`campaign status sweep --watch --dir '{folder}'` shows it" in capsys.readouterr().err


def test_the_list_names_its_last_column_and_says_what_completed_early(folder: Path, capsys: Output) -> None:
    store = Store.open(f"sqlite:///{folder}/campaign.db")
    with store.write() as conn:
        conn.execute(
            update(attempt).where(attempt.c.failure_class == "completed").values(failure_class=COMPLETED_EARLY)
        )
    store.close()
    assert main(["list", "--dir", str(folder)]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.endswith("STATES")
    assert "1 completed (1 early)" in line
    found = {}
    for verb in ("list", "status"):
        assert main([verb, "--json", "--dir", str(folder)]) == 0
        document = json.loads(capsys.readouterr().out)
        (found[verb],) = document["campaigns"] if verb == "list" else (document,)
    assert {(one["counts"]["completed"], one["completed_early"]) for one in found.values()} == {(1, 1)}


def test_a_pipe_is_not_folded() -> None:
    assert fold("a " * 500, None) == "a " * 500


def test_cells_are_continued_within_their_column() -> None:
    rows = [("command", "train.py --depth 6 --width 12", "train.py --depth 12 --width 12"), ("lr", "0.1", "0.2")]
    lines = table(Page(width=44), ("field", "left", "right"), rows)
    assert all(len(line) <= 44 for line in lines)
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["FIELD", "command", "lr"]
    assert " ".join(" ".join(lines).split()).count("--depth") == 2
    assert table(Page(), ("field", "left", "right"), rows)[1].endswith("train.py --depth 12 --width 12")


def test_a_word_that_is_longer_than_its_column_is_broken() -> None:
    row = ("command", "/shared/projects/a/train.py --depth 6", "/shared/b.py")
    lines = table(Page(width=42), ("field", "left", "right"), [row])
    assert all(len(line) <= 42 for line in lines)
    assert "".join(line[9:29].strip() for line in lines[1:]).replace(" ", "") == row[1].replace(" ", "")


def test_what_stands_behind_a_name_is_continued_behind_it() -> None:
    assert fold("state   failed: of a cause that takes some words", 30, 8).split("\n") == [
        "state   failed: of a cause",
        "        that takes some words",
    ]


def test_no_line_of_a_table_ends_in_blanks_that_are_coloured() -> None:
    header, *_ = table(Page(colour=True), ("run", "state"), [("a", "completed")])
    assert header.endswith("STATE\x1b[0m")


def test_a_command_is_compared_as_one_types_it() -> None:
    assert _text(["train.py", "--name", "a b"]) == "train.py --name 'a b'"
    assert _text([1, 2]) == "[1, 2]"


def test_a_document_has_an_infinity_by_its_name(capsys: Output) -> None:
    """As an axis may have one: `grad_clip: [1.0, .inf]`."""
    output.echo_json({"runs": [{"clip": math.inf, "list": [-math.inf, (math.nan, 1.5)], "path": Path("/x")}]})
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run == {"clip": "Infinity", "list": ["-Infinity", ["NaN", 1.5]], "path": "/x"}
