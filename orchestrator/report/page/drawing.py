"""What the report's figures have in common: their style, their width, and names beside what they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from dscampaign.orchestrator.formatting import shorten_middle
from dscampaign.orchestrator.report.compare.results import WorkloadResults

from .figures import spread
from .svg import mark

STYLE: Final = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.scale_dashes": False,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold a $
    "svg.hashsalt": "dscampaign",
}
SMALL: Final = 7.5
"""Points of a name."""

WIDTH: Final = 5.2
"""Inches of a figure: what is drawn so small can still be read on a telephone."""

HEIGHT: Final = 2.4
"""Inches of an axis that has its width."""

GREY: Final = "#999999"
"""Of what has no colour of its own."""

_LINE: Final = 0.155  # inches from a name to the next
_LONGEST: Final = 40
_LEFT, _BOTTOM, _TOP = 0.8, 0.5, 0.25  # inches around an axis, for its labels


@dataclass(frozen=True)
class Look:
    """How a condition is drawn in all figures: its number on the page, its name, and that without what is long."""

    number: int
    name: str
    label: str
    colour: str

    def mark(self, *artists: Artist, title: str = "", **data: object) -> None:
        """Says of artists that they are this condition's: the page hides and shows them together."""
        for artist in artists:
            mark(artist, title=title and f"{self.name}: {title}", c=self.number, **data)


Looks = Mapping[str, Look]
"""By name of the condition."""


def entitle(axis: Axes, one: WorkloadResults) -> None:
    """Says which of several workloads it is."""
    if one.workload.name:
        axis.set_title(one.workload.name, loc="left", fontsize="small", color="#666666")


def panels(names: Sequence[str], heights: Sequence[float], tops: Sequence[float] = ()) -> tuple[Figure, list[Axes]]:
    """A figure with an axis below another, and room on their right for names.

    Args:
        heights: inches of each axis; it is made higher where the names take more.
        tops: inches above each, in place of the usual.
    """
    tops = tops or [_TOP] * len(heights)
    heights = [max(height, _LINE * (len(names) + 1)) for height in heights]
    total = sum(heights) + sum(tops) + _BOTTOM * len(heights)
    figure = Figure((WIDTH, total))
    right = 0.3 + max(map(_width, names))
    axes, done = [], 0.0
    for height, top in zip(heights, tops, strict=True):
        done += top + height
        box = (_LEFT / WIDTH, 1 - done / total, (WIDTH - _LEFT - right) / WIDTH, height / total)
        axes.append(figure.add_axes(box))
        done += _BOTTOM
    return figure, axes


def _width(name: str) -> float:
    return text_to_path.get_text_width_height_descent(name, FontProperties(size=SMALL), ismath=False)[0] / 72


def name_beside(axis: Axes, looks: Sequence[Look], points: Sequence[tuple[float, float]]) -> None:
    """Names in a column right of an axis that `panels` made, each joined to its point by a line of its colour."""
    figure = axis.get_figure()
    assert isinstance(figure, Figure)
    apart = _LINE / (axis.get_position().height * figure.get_figheight())
    bottom, top = axis.get_ylim()
    heights = [float(np.clip((value - bottom) / (top - bottom), 0, 1)) for _, value in points]
    places = np.asarray(spread(heights, apart))
    ranks = np.argsort(np.argsort(places, kind="stable"))
    places = np.clip(places, ranks * apart, 1 - (len(places) - 1 - ranks) * apart)  # a crowd at an edge grows inwards
    for look, (x, _), height, place in zip(looks, points, heights, places, strict=True):
        value = bottom + height * (top - bottom)  # what is cut off is joined where it leaves
        line = {
            "arrowstyle": "-",
            "color": look.colour,
            "linewidth": 0.8,
            "alpha": 0.6,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        }
        label = axis.annotate(
            look.label, (x, value), (1.04, place), textcoords="axes fraction", va="center",
            fontsize=SMALL, arrowprops=line, annotation_clip=False,
        )  # fmt: skip
        look.mark(label, label=1)
        if label.arrow_patch:
            look.mark(label.arrow_patch)


def mark_axes(figure: Figure) -> None:
    """Says of each axis with lines what its edges stand for, so that the page can tell values along them."""
    for axis in figure.axes:
        if any((line.get_gid() or "").find('"line"') >= 0 for line in axis.lines):
            (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
            edges = {"left": left, "right": right, "bottom": bottom, "top": top}
            mark(
                axis.patch,
                x=axis.get_xlabel(),
                y=axis.get_ylabel(),
                **{key: f"{each:.7g}" for key, each in edges.items()},
            )


def labels_of(names: Sequence[str]) -> list[str]:
    """Name as they stand in a figure: where one is too long, all without what they begin with alike."""
    if max(map(len, names), default=0) <= _LONGEST:
        return list(names)
    differ = next((place for place, each in enumerate(zip(*names, strict=False)) if len(set(each)) > 1), 0)
    alike = names[0][:differ]
    begin = max(alike.rfind("_"), alike.rfind("-")) + 1
    found = [shorten_middle(f"…{name[begin:]}" if begin else name, _LONGEST) for name in names]
    return found if len(set(found)) == len(found) else [f"{place} {label}" for place, label in enumerate(found, 1)]


def thousands(value: float, _place: Any) -> str:
    """What stands at a tick: `50k`."""
    return f"{value / 1e3:,.0f}k" if abs(value) >= 1e4 else f"{value:,.4g}"
