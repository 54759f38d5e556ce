"""The page in a real browser: values at the pointer and by keys, the switch of conditions, small windows, no script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.browser import Browser, browser
from dscampaign.tests.support.planted import Planted, PlantStore, plant, results_at

CONDITIONS = (
    Planted("base", (0.100, 0.101, 0.102), (3.000, 3.002, 2.998)),
    Planted("<fast>", (0.05, 0.051, 0.052), (3.001, 3.003, 2.999), floor=2.5),
    Planted("same", (0.06, 0.061, 0.062), (3.001, 3.003, 2.999), floor=2.5),
)
LOSS = "document.querySelector('[aria-label=loss]')"
HIDDEN = "[...document.querySelectorAll('.off')].map((part) => part.dataset.c)"
TIP = "document.querySelector('.tip').hidden ? '' : document.querySelector('.tip').innerText"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and its report."""
    folder = tmp_path_factory.mktemp("report")
    store = Store.open(f"sqlite:///{folder}/campaign.db", create=True)
    plant(store, folder, CONDITIONS)
    store.close()
    assert main(["report", "sweep", "--store", f"sqlite:///{folder}/campaign.db", "--output", str(folder / "out")]) == 0
    return folder


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser."""
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def load(opened: Browser, written: Path, width: int = 1400, *, script: bool = True) -> None:
    opened.open(written / "out/report.html", width, script=script)


def values(opened: Browser) -> dict[str, float]:
    """What is said of each line."""
    text = "[...row.querySelectorAll('span')].map((one) => one.textContent)"
    rows = f"[...document.querySelectorAll('.tip p')].map((row) => {text})"
    return {row[0]: float(row[1]) for row in opened.evaluate(rows) if row}


def in_the_middle_of_losses(opened: Browser) -> None:
    """Moves the pointer to half of the steps."""
    opened.evaluate(f"{LOSS}.scrollIntoView({{block: 'center'}})")
    box = f"{LOSS}.querySelector('[data-left]').getBoundingClientRect()"
    x, y = opened.evaluate(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box})")
    opened.point(x, y)


def test_the_pointer_finds_the_loss_of_each_condition(opened: Browser, written: Path) -> None:
    load(opened, written)
    in_the_middle_of_losses(opened)
    said = opened.evaluate(TIP)
    assert said.startswith("optimizer steps: 50")
    runs = results_at(f"sqlite:///{written}/campaign.db").runs
    near = {run.name: [run.curve.smoothed[place] for place in (48, 51)] for run in runs}
    found = values(opened)
    assert list(found) == sorted(found, key=lambda name: -found[name])
    assert found.keys() == {"base", "<fast>", "same"}
    for name, value in found.items():
        low, high = sorted(near[name])
        assert low - 0.005 <= value <= high + 0.005, name
    assert opened.errors == []


def test_keys_move_through_a_figure_and_escape_leaves_it(opened: Browser, written: Path) -> None:
    load(opened, written)
    opened.evaluate(f"{LOSS}.focus()")
    opened.press("ArrowLeft")
    before = opened.evaluate(TIP)
    opened.press("ArrowLeft")
    assert before.startswith("optimizer steps: ")
    assert opened.evaluate(TIP) != before
    opened.press("Escape")
    assert opened.evaluate(TIP) == ""
    opened.evaluate("document.querySelector('[aria-label=\"speed memory\"]').focus()")
    opened.press("ArrowRight")
    assert opened.evaluate(TIP).startswith("base: ")
    assert "tokens/s" in opened.evaluate(TIP)


def test_a_condition_is_switched_off_in_all_figures_by_keys(opened: Browser, written: Path) -> None:
    load(opened, written)
    opened.evaluate("document.querySelector('.switches summary').focus()")
    opened.press(" ")
    for _ in range(4):  # two buttons, then the second box
        opened.press("Tab")
    opened.press(" ")
    assert opened.evaluate("document.querySelector('.switches output').textContent") == "2 of 3"
    assert set(opened.evaluate(HIDDEN)) == {"1"}
    figures = "[...document.querySelectorAll('figure')].filter((one) => one.querySelector('.off')).length"
    assert opened.evaluate(figures) == 6
    in_the_middle_of_losses(opened)
    assert values(opened).keys() == {"base", "same"}
    assert opened.errors == []


def test_what_coincided_with_a_hidden_line_is_drawn_through(
    opened: Browser, planted_url: PlantStore, tmp_path: Path
) -> None:
    alike = (
        Planted(name, (0.1,), floor=floor, printed=True) for name, floor in (("a", 2.0), ("b", 2.0), ("same", 2.0))
    )
    url = planted_url(*alike, Planted("far", (0.1,), floor=4.0, printed=True))
    assert main(["report", "--store", url, "--output", str(tmp_path / "out")]) == 0
    load(opened, tmp_path)
    dashes = f"{LOSS}.querySelector('[data-line=same] path').getAttribute('stroke-dasharray')"
    assert opened.evaluate(dashes) == "8,16"
    opened.evaluate("document.querySelector('.switches input[value=\"1\"]').click()")
    assert opened.evaluate(dashes) == "8 8"
    opened.evaluate("document.querySelector('.switches input[value=\"0\"]').click()")
    assert opened.evaluate(dashes) == "none"


def test_a_click_on_a_name_switches_it_and_buttons_all_of_them(opened: Browser, written: Path) -> None:
    load(opened, written)
    opened.evaluate(f"{LOSS}.scrollIntoView({{block: 'center'}})")
    box = f"{LOSS}.querySelector('[data-label][data-c=\"0\"]').getBoundingClientRect()"
    opened.click(*opened.evaluate(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box})"))
    assert set(opened.evaluate(HIDDEN)) == {"0"}
    opened.evaluate("document.querySelector('.switches button[value=none]').click()")
    assert set(opened.evaluate(HIDDEN)) == {"0", "1", "2"}
    opened.evaluate("document.querySelector('.switches button[value=all]').click()")
    assert opened.evaluate(HIDDEN) == []


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_a_page_is_no_wider_than_its_window(opened: Browser, written: Path, width: int) -> None:
    load(opened, written, width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_no_table_is_cut_off_in_print(opened: Browser, written: Path) -> None:
    load(opened, written, 720)  # A4 without margins, at 96 dots per inch
    opened.call("Emulation.setEmulatedMedia", media="print")
    cut = "[...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > 720).map((one) => one.ariaLabel)"
    assert opened.evaluate(cut) == []
    assert (
        opened.evaluate("[...document.querySelectorAll('.copy, .switches, nav')].some((one) => one.checkVisibility())")
        is False
    )
    assert (
        opened.evaluate("[...document.querySelectorAll('.folded table')].every((one) => one.checkVisibility())") is True
    )
    opened.call("Emulation.setEmulatedMedia", media="")


def test_the_first_screen_has_the_answer_and_the_figures(opened: Browser, written: Path) -> None:
    load(opened, written)
    ends = (
        "[...document.querySelectorAll('.summary .use, .summary svg')].map((one) => one.getBoundingClientRect().bottom)"
    )
    assert len(opened.evaluate(ends)) == 3
    assert max(opened.evaluate(ends)) < 900


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_in_figures_are_seen_on_what_is_behind_them(
    opened: Browser, planted_url: PlantStore, tmp_path: Path, scheme: str
) -> None:
    """In a heat map they stand on shades, which are the same on either page."""
    shapes = [
        {"seq_len": length, "micro_batch": batch, "global_batch": 2 * batch}
        for length in (128, 512)
        for batch in (2, 8)
    ]
    planted = (
        Planted(f"{place}", (0.01 * shape["micro_batch"] * shape["seq_len"],), params=shape, train=shape)
        for place, shape in enumerate(shapes)
    )
    assert main(["report", "--store", planted_url(*planted), "--output", str(tmp_path / "out")]) == 0
    opened.open(tmp_path / "out/report.html", prefers_color_scheme=scheme)
    words = opened.evaluate("""[...document.querySelectorAll("figure svg text")].map((word) =>
      [word.textContent, word.getAttribute("fill"), getComputedStyle(word).fill])""")
    back = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    on_shades = {"#ffffff": "rgb(255, 255, 255)", "#1c1c1c": "rgb(28, 28, 28)"}
    assert {own for _, own, _ in words} >= on_shades.keys()
    for word, own, ink in words:
        assert ink == on_shades[own] if own in on_shades else ink not in ("none", back), word


def test_without_the_script_figures_have_their_names_and_values(opened: Browser, written: Path) -> None:
    load(opened, written, script=False)
    assert opened.evaluate("document.querySelector('.switches').checkVisibility()") is False
    titles = opened.evaluate(
        "[...document.querySelectorAll('[aria-label=\"speed memory\"] title')].map((one) => one.textContent)"
    )
    assert [title.partition(":")[0] for title in titles] == ["base", "<fast>", "same"]
    names = opened.evaluate(
        "[...document.querySelectorAll('[aria-label=loss] [data-label]')].map((one) => one.textContent)"
    )
    assert set(names) == {"base", "<fast>", "same"}
