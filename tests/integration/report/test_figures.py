"""What has to be within the report's figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from xml.etree import ElementTree as ET

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dscampaign.orchestrator.report.measure.telemetry import GpuTrace
from dscampaign.orchestrator.report.page.figures import pictures
from dscampaign.orchestrator.report.page.plots import draw, svg_of
from dscampaign.orchestrator.report.page.tables import losses
from dscampaign.tests.support.planted import Planted, results_at

PlantStore = Callable[..., str]
_PATH: Final = "{http://www.w3.org/2000/svg}path"


@pytest.mark.parametrize(("held_out", "within"), [(5.0, True), (1e4, False)])
def test_held_out_text_that_is_not_learned_is_shown_beside_the_curve(
    planted_url: PlantStore, held_out: float, *, within: bool
) -> None:
    """A loss of 0 on memorised text looks good only where that on other text is cut off; one that diverged is."""
    results = results_at(planted_url(Planted("small text", (0.1,), (held_out,), floor=0.0)))
    curve = results.runs[0].curve
    assert max(curve.smoothed) < 5
    for axis in draw(results, [])["loss"].axes:
        low, high = axis.get_ylim()
        assert low < min(curve.smoothed)
        assert bool(high > held_out) is within


def test_a_legend_of_long_names_is_within_its_figure(planted_url: PlantStore) -> None:
    results = results_at(planted_url(*(Planted(f"model-gpt2-medium_strategy-zero{n}") for n in range(6))))
    traces = [GpuTrace(f"{run.name}, GPU 0 of node 10", [0.0], [1.0], [1.0], [1.0]) for run in results.runs[:4]]
    figures = draw(results, traces)
    figure = figures["gpus"]
    FigureCanvasAgg(figure).draw()
    extent = figure.legends[0].get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.width


@pytest.mark.parametrize("length", [2, 20, 38, 60])
def test_what_stands_around_an_axis_is_within_its_figure(planted_url: PlantStore, length: int) -> None:
    names = [f"{'wm_' * (length // 3)}zero{n}" for n in range(12)]
    few = [Planted(f"few-{name}", train={"model": "gpt2-large"}) for name in names[:2]]
    results = results_at(planted_url(*(Planted(name, floor=2 + 1e-5 * n) for n, name in enumerate(names)), *few))
    for name, figure in draw(results, []).items():
        FigureCanvasAgg(figure).draw()
        taken = figure.get_tightbbox()
        assert -0.01 <= taken.x0 <= taken.x1 <= figure.get_figwidth() + 0.01, name
        assert -0.01 <= taken.y0 <= taken.y1 <= figure.get_figheight() + 0.01, name


@pytest.mark.parametrize(
    ("step_s", "labels"),
    [(1.0, ["optimizer steps", "seconds of training steps"]), (0.005, ["optimizer steps"])],
)
def test_a_loss_is_drawn_by_what_is_known_alone_and_in_no_unit_that_is_not(
    planted_url: PlantStore, step_s: float, labels: list[str]
) -> None:
    results = results_at(planted_url(Planted("own", (step_s,), (None,), printed=True)))
    axes = draw(results, [])["loss"].axes
    assert [axis.get_xlabel() for axis in axes] == labels
    assert {axis.get_ylabel() for axis in axes} == {"loss"}
    (picture,) = pictures("loss", results)
    assert "tokens" not in picture.caption
    (text,) = losses(results).text
    assert text.startswith("As the script reports it.")


@pytest.mark.parametrize(("floor", "shown"), [(2.0, False), (2.001, True)])
def test_losses_that_are_the_same_have_no_figure_of_their_difference(
    planted_url: PlantStore, floor: float, *, shown: bool
) -> None:
    same = (Planted("a", (1.0,), printed=True), Planted("b", (1.0,), printed=True, floor=floor))
    results = results_at(planted_url(*same))
    assert ("loss_difference" in draw(results, [])) is shown
    assert bool(pictures("loss_difference", results)) is shown


@pytest.mark.parametrize(
    "name",
    [
        '"><script>alert(1)</script>',
        '\' d="M 1.234 5.678" style="a: b"',
        "<g id='@{\"c\": 9}'>",
        "</title><title>",
        "$x_{2}$ & <b>",
    ],
)
def test_names_that_look_like_markup_are_drawn_as_they_are(planted_url: PlantStore, name: str) -> None:
    results = results_at(planted_url(Planted("base"), Planted(name, (0.05,), floor=2.5)))
    for kind, figure in draw(results, []).items():
        root = ET.fromstring(svg_of(figure))
        tags = {one.tag.rpartition("}")[2] for one in root.iter()}
        assert tags <= {"svg", "defs", "clipPath", "rect", "path", "use", "g", "text", "title"}, kind
        drawn = {"".join(one.itertext()) for one in root.iter() if one.tag.endswith("}text")}
        named = {one.attrib["data-line"] for one in root.iter() if "data-line" in one.attrib}
        if kind.startswith("loss"):
            assert {"base", name} <= drawn
            assert named == {"base", name}


def test_the_points_of_a_line_stand_for_its_data(planted_url: PlantStore) -> None:
    """What the page tells along a line it calculates from the axis' edges and the line's points."""
    results = results_at(planted_url(Planted("own", (0.1,))))
    root = ET.fromstring(svg_of(draw(results, [])["loss"]))
    (axis, *_) = (one for one in root.iter() if "data-left" in one.attrib)
    (line, *_) = (one for one in root.iter() if "data-line" in one.attrib)
    corners, points = (
        [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", next(iter(one.iter(_PATH))).attrib["d"])]
        for one in (axis, line)
    )
    left, right, bottom, top = (float(axis.attrib[f"data-{edge}"]) for edge in ("left", "right", "bottom", "top"))
    (x0, x1), (y1, y0) = ((min(values), max(values)) for values in zip(*corners, strict=True))
    curve = results.runs[0].curve
    x, y = points[-1]
    assert left + (x - x0) / (x1 - x0) * (right - left) == pytest.approx(curve.step[-1], abs=0.1)
    assert bottom + (y0 - y) / (y0 - y1) * (top - bottom) == pytest.approx(curve.smoothed[-1], abs=0.01)
