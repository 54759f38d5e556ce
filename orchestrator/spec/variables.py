"""`${NAME}` in the texts of a spec, and forms that only a shell would expand. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_FORM: Final = re.compile(
    r"(?P<dollar>\$\$(?=[A-Za-z_{(]))|\$\{(?P<name>[A-Za-z_]\w*)\}"
    r"|(?P<shell>\$(?:(?P<bare>[A-Za-z_]\w*)|\{(?P<inner>[^{}]*)\}?|\())"
)
"""A dollar that is meant, as `$$NAME`; a variable; and a form for a shell."""


def names_in(text: str, *, escapes: bool = False) -> list[str]:
    """Return the variables in a text."""
    return [found["name"] for found in _forms(text, escapes=escapes) if found["name"]]


def filled(text: str, environ: Mapping[str, str], *, escapes: bool = False) -> str:
    """Return the text with each variable's value; with `escapes`, `$$NAME` becomes `$NAME`."""
    result, end = [], 0
    for found in _forms(text, escapes=escapes):
        value = environ[found["name"]] if found["name"] else "$" if found["dollar"] else found[0]
        result += [text[end : found.start()], value]
        end = found.end()
    return "".join((*result, text[end:]))


def unexpanded(text: str, *, escapes: bool = False, home: bool = False) -> tuple[str, str] | None:
    """Return the part of a text that only a shell would expand, and a hint; None for none.

    Args:
        escapes: `$$NAME` is a dollar that is meant.
        home: A `~` at the beginning is the home folder.
    """
    found = next((found for found in _forms(text, escapes=escapes) if found["shell"]), None)
    if found is not None:
        form, hint = found[0], _instead(found)
        hint += f", or ${form} if the dollar is meant" if escapes else ""
    elif not home and text.startswith("~"):
        form, hint = "~", "write ${HOME}, or the path in full"
    else:
        return None
    return f"{form} is not expanded: no shell reads it", hint


def dollar_form(text: str, *, escapes: bool = False) -> str | None:
    """Return the first form with a dollar that a shell would expand."""
    return next((found[0] for found in _forms(text, escapes=escapes) if not found["dollar"]), None)


def _instead(found: re.Match[str]) -> str:
    name = re.match(r"[A-Za-z_]\w*", found["bare"] or found["inner"] or "")
    if name is None:
        return "write the value"
    return f"write ${{{name[0]}}}" if found["bare"] else f"write ${{{name[0]}}} and export it, or write the value"


def _forms(text: str, *, escapes: bool) -> Iterator[re.Match[str]]:
    start = 0
    while found := _FORM.search(text, start):
        if found["dollar"] and not escapes:
            start = found.start() + 1
            continue
        yield found
        start = found.end()
