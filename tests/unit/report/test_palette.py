"""The colours of conditions, as people see them who lack one kind of cone (Machado et al. 2009), by CIEDE2000."""

from __future__ import annotations

import itertools
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt
from typing import Final

import pytest

from dscampaign.orchestrator.report.page.looks import COLOURS

Triple = tuple[float, float, float]
Matrix = tuple[Triple, Triple, Triple]

SEEN_BY: Final[dict[str, Matrix]] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
_XYZ: Final[Matrix] = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE: Final = (0.95047, 1.0, 1.08883)


def linear(colour: str) -> Triple:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return _linear(red), _linear(green), _linear(blue)


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def times(matrix: Matrix, vector: Triple) -> Triple:
    a, b, c = (sum(x * y for x, y in zip(row, vector, strict=True)) for row in matrix)
    return a, b, c


def lab(light: Triple) -> Triple:
    x, y, z = (_root(value / white) for value, white in zip(times(_XYZ, light), _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _root(value: float) -> float:
    return value ** (1 / 3) if value > 216 / 24389 else (24389 / 27 * value + 16) / 116


def ciede2000(one: Triple, other: Triple) -> float:
    """How far apart two colours look; about 2 is just noticeable side by side."""
    mean_chroma = (hypot(*one[1:]) + hypot(*other[1:])) / 2
    stretch = 1.5 - 0.5 * sqrt(mean_chroma**7 / (mean_chroma**7 + 25**7))
    (l1, a1, b1), (l2, a2, b2) = ((light, stretch * a, b) for light, a, b in (one, other))
    c1, c2, h1, h2 = hypot(a1, b1), hypot(a2, b2), degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    light, chroma, hue = (l1 + l2) / 2, (c1 + c2) / 2, (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    by_hue = (
        1
        - 0.17 * cos(radians(hue - 30))
        + 0.24 * cos(radians(2 * hue))
        + 0.32 * cos(radians(3 * hue + 6))
        - 0.2 * cos(radians(4 * hue - 63))
    )
    d_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2))
    d_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    d_hue = 2 * sqrt(c1 * c2) * sin(radians(turn / 2)) / (1 + 0.015 * chroma * by_hue)
    twist = -2 * sqrt(chroma**7 / (chroma**7 + 25**7)) * sin(radians(60 * exp(-(((hue - 275) / 25) ** 2))))
    return sqrt(max(0.0, d_light**2 + d_chroma**2 + d_hue**2 + twist * d_chroma * d_hue))


@pytest.mark.parametrize("matrix", SEEN_BY.values(), ids=SEEN_BY)
def test_every_pair_of_conditions_looks_different(matrix: Matrix) -> None:
    seen = {}
    for colour in COLOURS:
        red, green, blue = (min(1.0, max(0.0, value)) for value in times(matrix, linear(colour)))
        seen[colour] = lab((red, green, blue))
    apart = {(a, b): ciede2000(seen[a], seen[b]) for a, b in itertools.combinations(COLOURS, 2)}
    assert min(apart.values()) > 9.9, min(apart, key=lambda pair: apart[pair])


@pytest.mark.parametrize(("back", "least"), [("#ffffff", 2), ("#17191c", 2.6)], ids=["light", "dark"])
def test_every_colour_is_seen_on_its_page(back: str, least: float) -> None:
    for colour in COLOURS:
        low, high = sorted(times(_XYZ, linear(each))[1] + 0.05 for each in (colour, back))
        assert high / low > least, colour
