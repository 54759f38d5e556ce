"""What `campaign report`, `recommend` and `compare` write and print."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.planted import Planted, Try, plant

PlantStore = Callable[..., str]
CONDITIONS = (
    Planted("base", (0.100, 0.101, 0.102), (3.000, 3.002, 2.998), gpu="NVIDIA H100 80GB HBM3"),
    Planted("<fast>", (0.05, 0.051, 0.052), (3.001, 3.003, 2.999), train={"zero_stage": 2}),
    Planted("back", tries=(Try(0, 60, "gpu"), Try(50, 100, exclude=("n7", "n9")))),
    Planted("wild", (0.05,), (3.0,), nan_from=60, state=RunState.FAILED, tries=(Try(ended="diverged"),)),
)
FILES = {"report.html", "report.md", "report.json", "conditions.csv"}
FIGURES = {"speed_memory", "loss"}


class _Page(HTMLParser):
    """What a page would fetch, its headings, and its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("iframe", "object", "embed", "audio", "video", "base"):
            self.fetched.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "data") and not (value or "").startswith("#"):
                self.fetched.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a report, and what was printed."""
    folder = tmp_path_factory.mktemp("report")
    url = f"sqlite:///{folder}/campaign.db"
    store = Store.open(url, create=True)
    plant(store, folder, CONDITIONS)
    store.close()
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["report", "sweep", "--store", url, "--output", str(folder / "out")]) == 0
    return folder / "out", printed.getvalue()


def test_a_report_is_a_page_and_its_parts(written: tuple[Path, str]) -> None:
    folder, printed = written
    assert {path.name for path in folder.iterdir()} == {*FILES, "figures"}
    assert {path.stem for path in (folder / "figures").iterdir()} == FIGURES
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".svg"}
    assert printed.startswith("Use <fast>: 1.98 × ")


def test_the_page_fetches_nothing_and_escapes_names(written: tuple[Path, str]) -> None:
    text = (written[0] / "report.html").read_text()
    page = _Page(text)
    assert page.fetched == []
    assert "url(http" not in text
    assert "default-src 'none'" in text
    assert "<fast>" in page.words
    assert "<fast>" not in re.sub(r"&lt;fast&gt;", "", text)
    for heading in ("How fast?", "Same learning?", "Does it fit?", "What went wrong?", "Where did the time go?"):
        assert heading in page.words
    assert text.count('class="chart"') == len(FIGURES)


def test_the_policy_allows_the_style_and_the_scripts_of_the_page_and_no_others(written: tuple[Path, str]) -> None:
    text = (written[0] / "report.html").read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in inline]
        assert allowed[f"{tag}-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert re.findall(r"<script\b[^>]+>", text) == ['<script type="application/json" id="charts">']
    page = text.partition("<script>")[0]
    assert not re.search(r"<[^>]* (?:style|on\w+)=", page)
    assert len(text) < 1.5e6


def test_markdown_has_the_same_tables_and_pictures(written: tuple[Path, str]) -> None:
    text = (written[0] / "report.md").read_text()
    assert "](figures/loss.svg)" in text
    rows = [line for line in text.partition("## How fast")[2].splitlines() if line.startswith("| back ")]
    assert rows
    header = next(line for line in text.splitlines() if line.startswith("| condition | median tokens/s"))
    assert rows[0].count("|") == header.count("|")
    assert r"\<fast\>" in text


def test_what_failed_is_told_with_what_was_done(written: tuple[Path, str]) -> None:
    _, _, rest = (written[0] / "report.md").read_text().partition("## What went wrong?\n")
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    assert rows[0] == "| what | how often | where | reason, of the first | what was done |"
    assert rows[2:4] == [
        "| gpu | 1 | back | it ended gpu | attempt 2 from step 50, without n7 n9 |",
        "| diverged | 1 | wild | it ended diverged | no further try |",
    ]


def test_data_files_hold_every_condition_and_run(written: tuple[Path, str]) -> None:
    folder, _ = written
    document = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    (workload,) = document["workloads"]
    assert workload["recommendation"]["condition"] == "<fast>"
    assert workload["recommendation"]["proven"] is True
    assert [one["name"] for one in workload["conditions"]] == ["base", "<fast>", "back", "wild"]
    assert workload["conditions"][1]["order"] == "faster"
    assert document["cost"]["lost"].keys() == {"gpu", "diverged"}
    assert [(one["run"], one["generation"], one["kind"]) for one in document["failures"]] == [
        ("back", 1, "gpu"),
        ("wild", 1, "diverged"),
    ]
    first = document["runs"][0]
    assert first["nodes"] == ["n0"]
    work = first["mfu_inputs"]
    flops = 6 * work["parameters"] + 12 * work["layers"] * work["width"] * 128
    assert work["flops_per_token"] == flops
    of_a_rank = first["timing"]["tokens_per_s"] / first["world_size"]
    assert of_a_rank * flops / work["peak_flops"] == pytest.approx(first["timing"]["mfu"], rel=0.01)
    assert len(document["runs"]) == 10
    assert first["timing"]["step_s"] == pytest.approx(0.1, rel=0.01)
    with (folder / "conditions.csv").open() as stream:
        assert [row["name"] for row in csv.DictReader(stream)] == ["base", "<fast>", "back", "wild"]


def test_the_same_results_give_the_same_page(
    planted_url: PlantStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = planted_url(*CONDITIONS[:2])
    monkeypatch.setattr("time.time", lambda: 1.7e9)
    for name in ("a", "b"):
        assert main(["report", "--store", url, "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / "a/report.html").read_bytes() == (tmp_path / "b/report.html").read_bytes()


@pytest.mark.parametrize(
    ("state", "sentence"), [(RunState.PENDING, "no condition is finished"), (RunState.FAILED, "no condition completed")]
)
def test_a_campaign_without_results_has_a_page_too(
    planted_url: PlantStore, tmp_path: Path, state: RunState, sentence: str
) -> None:
    url = planted_url(Planted("a", (0.1,), (3.0,), state=state, reason="boom", tries=(Try(last=0, ended=None),)))
    assert main(["report", "--store", url, "--output", str(tmp_path / "out")]) == 0
    assert f"<h1>Nothing can be recommended: {sentence}.</h1>" in (tmp_path / "out/report.html").read_text()


def test_recommend_names_one_and_says_why_not_the_others(
    planted_url: PlantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    url = planted_url(*CONDITIONS)
    assert main(["recommend", "--store", url]) == 0
    page = capsys.readouterr().out
    sentence, table, basis = page.split("\n\n")
    assert sentence.startswith("Use <fast>: 1.98 × ")
    assert basis.startswith("baseline: base (the first")
    assert [line.split()[0] for line in table.splitlines()] == ["condition", "<fast>", "back", "base", "wild"]
    assert re.search(r"^wild .* diverged$", page, re.MULTILINE)
    assert main(["recommend", "--store", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["workloads"][0]["recommendation"]["condition"] == "<fast>"


def compared(url: str, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["compare", *words, "--store", url, "--json"]) == 0
    comparisons: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["comparisons"]
    return comparisons


def test_two_conditions_are_compared_down_to_the_configuration(
    planted_url: PlantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    url = planted_url(*CONDITIONS)
    (one,) = compared(url, capsys, "base", "<fast>")
    assert one["configuration"] == [{"field": "train.zero_stage", "left": "1", "right": "2"}]
    assert one["times_left"] == pytest.approx(1.98, rel=0.01)
    assert (one["order"], one["loss"]["verdict"]) == ("faster", "equal")
    assert main(["compare", "sweep", "base", "<fast>", "--store", url]) == 0
    page = capsys.readouterr().out
    assert "Mean step time: <fast> -49.5 %" in page
    assert re.search(r"^configuration +base +<fast>$", page, re.MULTILINE)


def test_two_repeats_of_one_condition_are_compared_as_runs(
    planted_url: PlantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = compared(url := planted_url(*CONDITIONS), capsys, "base-r1", "base-r2")
    assert (one["configuration"], one["order"]) == ([], "not_proven")
    (one,) = compared(url, capsys, "base-r0", "base-r2")
    assert one["loss"]["difference"]["value"] == pytest.approx(-0.002)  # with other seeds
    assert one["loss"]["verdict"] == "not_proven"
    assert main(["compare", "base-r0", "base-r2", "--store", url]) == 0
    assert "base · repeat 1" in capsys.readouterr().out


def test_two_campaigns_are_compared_by_their_parameters(
    planted_url: PlantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    planted_url(*CONDITIONS[:2], name="before")
    url = planted_url(Planted("base", (0.2, 0.202, 0.204), (3.0, 3.002, 2.998)), CONDITIONS[2], name="after")
    (one,) = compared(url, capsys, "before", "after")
    assert (one["left"], one["right"], one["order"]) == ("before/base", "after/base", "slower")
    assert main(["compare", "before", "after", "--store", url]) == 0
    page = capsys.readouterr().out
    assert "Only in before: <fast>." in page
    assert "Only in after: back." in page
    (one,) = compared(url, capsys, "before/base-r1", "after/back")
    assert (one["left"], one["right"]) == ("before/base-r1", "after/back")


def test_no_text_of_a_store_moves_a_cursor(planted_url: PlantStore, tmp_path: Path) -> None:
    """Not in the terminal either, nor a line."""
    odd = "\x1b]52;c;x\x07\x1b[2Jm\x9b31m\u202e"
    failed = Planted(
        *("a", (0.1,), (3.0,)), state=RunState.FAILED, reason="red \x1b[31m\nline", tries=(Try(ended="crash"),)
    )
    said: dict[str, Any] = {
        "train": {"model": odd, "dataset": odd},
        "params": {"model": odd, odd: odd},
        "device": odd,
        "gpu": odd,
    }
    others = [Planted(name, (0.1,), (3.0,), **said) for name in (odd, "c")]
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["report", "--store", planted_url(failed, *others), "--output", str(tmp_path / "out")]) == 0
    texts = [tmp_path / "out" / name for name in ("report.html", "report.md", "conditions.csv")]
    for text in (printed.getvalue(), *(path.read_text() for path in texts)):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
