"""A figure as an SVG element that is small, needs no style sheet, and says what its parts stand for."""

from __future__ import annotations

import html
import json
import re
from io import StringIO
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.figure import Figure

_FONTS: Final = "DejaVu Sans, Verdana, sans-serif"
"""Matplotlib lays text out in the first; the second is as wide, and most others are narrower."""

_MARK: Final = "@"
"""What the name of a group begins with that says what it stands for."""


def mark(artist: Artist, *, title: str = "", **data: object) -> None:
    """Says of an artist what it stands for: each value becomes an attribute `data-…` of its group in the SVG.

    ``title`` is what a browser shows where the pointer rests on it.
    """
    artist.set_gid(_MARK + json.dumps({**data, "": title}))


def as_svg(figure: Figure) -> str:
    """The figure as an SVG element; the same bytes for the same figure."""
    stream = StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL
    )
    text = re.sub(r"<[^>]*>", lambda found: _tag(found[0]), text)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    text = re.sub(r">\s*\n\s*<", "><", text)
    return _without_plain_groups(text).strip() + "\n"


def _tag(text: str) -> str:
    if text.startswith("<svg "):
        return text.replace("<svg ", '<svg stroke-linejoin="round" stroke-linecap="butt" ', 1)
    if text.startswith("<g ") and text.endswith("/>"):
        return ""  # nothing is in it
    if found := re.fullmatch(r"<g id=([\"'])(.*?)\1>", text, re.DOTALL):
        return _group(html.unescape(found[2]))
    if text.startswith('<path id="'):  # a marker: where it is used its style stands again, for the page to change
        text = re.sub(r' style="[^"]*"', "", text)
    text = re.sub(r' style="([^"]*)"', lambda found: _attributes(found[1]), text)
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{_path(found[1])}"', text)
    text = re.sub(r' (x|y)="(-?[\d.]+)"', lambda found: f' {found[1]}="{_rounded(found[2])}"', text)
    return re.sub(r' transform="rotate\(-0 [^"]*"', "", text)


def _attributes(style: str) -> str:
    """Attributes for styles, which a page that allows no style of others would not heed."""
    pairs = [part.split(":", 1) for part in style.split(";") if part.strip()]
    kept = ((name.strip(), value.strip()) for name, value in pairs)
    return "".join(f' {name}="{_FONTS if name == "font-family" else html.escape(value)}"' for name, value in kept)


def _group(name: str) -> str:
    if not name.startswith(_MARK):
        return "<g>"
    data: dict[str, Any] = json.loads(name[len(_MARK) :])
    title = data.pop("")
    words = "".join(f' data-{key}="{html.escape(str(value))}"' for key, value in data.items())
    return f"<g{words}>" + (f"<title>{html.escape(title)}</title>" if title else "")


def _path(data: str) -> str:
    rounded = re.sub(r"-?\d+\.\d+", lambda found: _rounded(found[0]), data)
    return re.sub(r"\s*([MLCQz])\s*", r"\1", rounded).replace("\n", " ").strip()


def _rounded(number: str) -> str:
    return f"{round(float(number), 1) + 0.0:g}"


def _without_plain_groups(text: str) -> str:
    """Without groups that have no attribute, which are most of them."""
    kept: list[str] = []
    stack: list[str] = []
    last = 0
    for found in re.finditer(r"<g>|<g [^>]*>|</g>", text):
        kept.append(text[last : found.start()])
        last = found.end()
        if found[0] == "</g>":
            kept.append(stack.pop())
        else:
            plain = found[0] == "<g>"
            stack.append("" if plain else "</g>")
            kept.append("" if plain else found[0])
    return "".join([*kept, text[last:]])
