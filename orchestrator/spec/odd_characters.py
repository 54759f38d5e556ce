"""Characters that look like another one, or like nothing, and come along with text from a web page. Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

_SPACES: Final = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_INVISIBLE: Final = "\u00ad\u200b\u2060\ufeff"
_QUOTES: Final = "\u2018-\u201f\u00ab\u00bb"
_DASHES: Final = "\u2010-\u2015\u2212"
_WIDE: Final = "\uff08\uff09\uff0c\uff1a\uff3b\uff3d\uff5b\uff5d"

_ANYWHERE: Final = re.compile(f"[{_SPACES}{_INVISIBLE}{_QUOTES}{_DASHES}{_WIDE}]")
_IN_TEXT: Final = re.compile(rf"[{_SPACES}{_INVISIBLE}]|^[{_QUOTES}]|(?<![^\s])[{_DASHES}]+(?=[\w.])")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'| #.*|^\s*#.*")
_INSTEAD: Final = {
    _SPACES: "write a plain space",
    _INVISIBLE: "remove it",
    _QUOTES: "write a plain quote",
    _DASHES: "write a plain -",
}


@dataclass(frozen=True)
class Odd:
    """Such a character: where it stands, from 0, and what to say of it."""

    column: int
    message: str
    hint: str


def in_line(line: str) -> Odd | None:
    """The first one in a line that is not YAML, outside of quotes and comments."""
    plain = _QUOTED.sub(lambda found: " " * len(found[0]), line)
    return _odd(_ANYWHERE.search(plain))


def in_text(text: str) -> Odd | None:
    """The first one in text without quotes: a space or nothing, a quote around it, a dash in front of a word."""
    return _odd(_IN_TEXT.search(text))


def _odd(found: re.Match[str] | None) -> Odd | None:
    if found is None:
        return None
    char = found[0][0]
    name = unicodedata.name(char, "unnamed character").lower()
    hint = next((hint for kind, hint in _INSTEAD.items() if re.match(f"[{kind}]", char)), None)
    wide = unicodedata.normalize("NFKC", char)
    article = "an" if name[0] in "aeiou" else "a"
    return Odd(found.start(), f"holds {article} {name} (U+{ord(char):04X})", hint or f"write a plain {wide}")
