"""The page in a real browser: charts under its policy, the legend, tables, small windows, print, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.browser import Browser, browser, click, middle, until
from dscampaign.tests.support.planted import Planted, plant

HOSTILE = '</script>"<b>${hidden}'
CONDITIONS = (
    Planted("base", (0.100, 0.101, 0.102), (3.000, 3.002, 2.998)),
    Planted(HOSTILE, (0.05, 0.051, 0.052), (3.001, 3.003, 2.999), floor=2.5),
    Planted("same", (0.06, 0.061, 0.062), (3.001, 3.003, 2.999), floor=2.6),
)
POINTS = "#chart-speed_memory .mark-symbol path"
TIP = "document.querySelector('#vg-tooltip-element.visible')?.innerText ?? ''"
CHARTS = "document.querySelectorAll('.chart svg').length"


def page_of(folder: Path, conditions: Sequence[Planted]) -> Path:
    """The page of a report."""
    store = Store.open(f"sqlite:///{folder}/campaign.db", create=True)
    plant(store, folder, conditions)
    store.close()
    assert main(["report", "sweep", "--store", f"sqlite:///{folder}/campaign.db", "--output", str(folder / "out")]) == 0
    return folder / "out/report.html"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report."""
    return page_of(tmp_path_factory.mktemp("report"), CONDITIONS)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser."""
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def load(opened: Browser, written: Path, width: int = 1400, height: int = 900, **media: Any) -> None:
    opened.open(written, width, height, **media)
    until(opened, "document.documentElement.dataset.drawn")


def test_charts_are_drawn_and_answer_the_pointer(opened: Browser, written: Path) -> None:
    load(opened, written)
    assert opened.evaluate(CHARTS) == opened.evaluate("document.querySelectorAll('.chart').length") == 2
    opened.point(*middle(opened, f"document.querySelectorAll('{POINTS}')[1]"))
    said = until(opened, TIP)
    assert HOSTILE in said
    assert "tokens/s" in said
    opened.point(*middle(opened, "document.querySelector('#chart-loss svg')"))
    assert "step" in until(opened, TIP)
    assert opened.evaluate("document.images.length") == 0
    assert opened.errors == []


@pytest.mark.parametrize(
    "conditions",
    [
        [Planted(name, held_out=(None, None, None)) for name in ("a", "b")],
        [Planted(name, held_out=(None,), step_s=(0.1,), printed=True) for name in ("a", "b")],
        [Planted("a", nan_from=1, held_out=(None, None, None)), Planted("b")],
        [Planted("a", step_s=(0.1,), held_out=(3.0,))],
    ],
    ids=["no held-out losses", "printed", "diverged", "one run"],
)
def test_charts_are_drawn_from_little(opened: Browser, tmp_path: Path, conditions: Sequence[Planted]) -> None:
    load(opened, page_of(tmp_path, conditions))
    assert opened.evaluate(CHARTS) == opened.evaluate("document.querySelectorAll('.chart').length")
    assert opened.errors == []


def test_the_legend_filters_all_charts(opened: Browser, written: Path) -> None:
    load(opened, written)
    lines = "document.querySelectorAll('#chart-loss .mark-line path').length"
    points = f"document.querySelectorAll('{POINTS}').length"
    before = opened.evaluate(lines), opened.evaluate(points)
    click(opened, "document.querySelectorAll('.chip')[2]")
    until(opened, f"{lines} < {before[0]} && {points} < {before[1]}")
    click(opened, "document.querySelectorAll('.chip')[2]")
    until(opened, f"{lines} === {before[0]} && {points} === {before[1]}")
    assert opened.errors == []


def test_tables_sort_and_copy_as_csv(opened: Browser, written: Path) -> None:
    load(opened, written)
    table = "document.querySelector('[aria-label=\"How fast?\"] table')"
    column = f"[...{table}.tBodies[0].rows].map((row) => row.cells[0].querySelector('.name').innerText)"
    speeds = f"{table}.tHead.rows[0].cells[1].querySelector('button')"
    opened.evaluate(f"{speeds}.click()")
    assert [name.partition(" ")[0] for name in opened.evaluate(column)] == ["base", "same", HOSTILE]
    opened.evaluate(f"{speeds}.click()")
    assert [name.partition(" ")[0] for name in opened.evaluate(column)] == [HOSTILE, "same", "base"]
    more = f"getComputedStyle({table}.tHead.rows[0].cells[9]).display"
    assert opened.evaluate(more) == "none"
    opened.evaluate(f"{table}.closest('.table').querySelector('input').click()")
    assert opened.evaluate(more) == "table-cell"
    opened.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: (text) => (window.copied = text)}})"
    )
    opened.evaluate(f"{table}.closest('.table').querySelector('.copy').click()")
    text = until(opened, "window.copied")
    header, first, *_ = text.splitlines()
    assert header.startswith("condition,median tokens/s,range (tokens/s),")
    assert first.startswith('"' + HOSTILE.replace('"', '""') + '",')
    assert opened.errors == []


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_screen_has_sentence_table_and_chart(opened: Browser, written: Path, width: int, height: int) -> None:
    load(opened, written, width, height)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    parts = "[...document.querySelectorAll('h1, .first table, .first .chart svg')]"
    boxes = opened.evaluate(f"{parts}.map((one) => one.getBoundingClientRect()).map((box) => [box.right, box.bottom])")
    assert len(boxes) == 3
    assert max(right for right, _ in boxes) <= width
    assert max(bottom for _, bottom in boxes) <= height


def test_the_marked_row_has_no_gap_on_a_small_screen(opened: Browser, written: Path) -> None:
    load(opened, written, 500)
    cells = "[...document.querySelectorAll('.first tr:has(.best) td')].map((one) => one.getBoundingClientRect())"
    assert opened.evaluate(f"(([name, speed]) => speed.left - name.right)({cells})") < 1


def test_a_phone_has_all_rows_and_their_number(opened: Browser, tmp_path: Path) -> None:
    load(opened, page_of(tmp_path, [Planted(f"c{n}", (0.1 + n / 100,) * 3) for n in range(8)]), 390, 844)
    seen = "[...document.querySelectorAll('.first tbody tr, .first p')].filter((one) => one.checkVisibility()).length"
    assert opened.evaluate(seen) == 6 + 1


def test_a_first_table_of_losses_fits_a_phone(opened: Browser, tmp_path: Path) -> None:
    rates = [
        Planted(f"{lr}", held_out=(loss, loss + 0.02, loss + 0.02), params={"label": "", "lr": lr}, train={"lr": lr})
        for lr, loss in ((1e-4, 3.2), (1e-3, 3.0), (1e-2, 3.4))
    ]
    load(opened, page_of(tmp_path, rates), 390, 844)
    seen = "[...document.querySelectorAll('.first td')].filter((one) => one.checkVisibility())"
    assert opened.evaluate(f"{seen}.length") == 9
    assert opened.evaluate(f"{seen}.every((one) => one.scrollWidth <= one.clientWidth)") is True


def test_print_has_all_columns_and_details(opened: Browser, written: Path) -> None:
    load(opened, written, 720)  # A4 without margins, at 96 dots per inch
    opened.call("Emulation.setEmulatedMedia", media="print")
    assert (
        opened.evaluate("[...document.querySelectorAll('.copy, .all, nav')].some((one) => one.checkVisibility())")
        is False
    )
    assert (
        opened.evaluate("[...document.querySelectorAll('table, .more')].every((one) => one.checkVisibility())") is True
    )
    opened.call("Emulation.setEmulatedMedia", media="")


def test_without_the_script_the_page_names_the_pictures(opened: Browser, written: Path) -> None:
    opened.open(written, script=False)
    assert "have them as pictures" in opened.evaluate("document.querySelector('noscript').innerText")
