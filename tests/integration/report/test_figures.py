"""What has to be within the report's figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dscampaign.orchestrator.report.measure.telemetry import GpuTrace
from dscampaign.orchestrator.report.page.figures import pictures
from dscampaign.orchestrator.report.page.plots import draw
from dscampaign.orchestrator.report.page.tables import losses
from dscampaign.tests.support.planted import Planted, results_at

PlantStore = Callable[..., str]


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
