"""`${NAME}` in the texts of a spec, and forms that only a shell would expand. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_FORM: Final = r"\$\{(?P<name>[A-Za-z_]\w*)\}|(?P<shell>\$(?:[A-Za-z_]\w*|\{[^{}]*\}?|\())"
_FORMS: Final = {False: re.compile(_FORM), True: re.compile(rf"\$\$(?=[A-Za-z_{{(])|{_FORM}")}
"""A variable, and a form for a shell; with escapes also a dollar that is meant, as in `$$NAME`."""


class Filled(NamedTuple):
    """A text with the values of its variables.

    Attributes:
        unset: The variables without a value.
        shell: The first form that only a shell would expand, "" for none.
    """

    text: str
    unset: tuple[str, ...]
    shell: str

    @property
    def hint(self) -> str:
        """The text to write instead of the form for a shell."""
        name = re.match(r"\$\{?([A-Za-z_]\w*)", "${HOME" if self.shell == "~" else self.shell)
        return f"write ${{{name[1]}}}" if name else "write the value"


def filled(text: str, environ: Mapping[str, str], *, escapes: bool = False, home: bool = True) -> Filled:
    """Fill in the variables of a text.

    Args:
        escapes: `$$NAME` is a dollar that is meant.
        home: A `~` at the beginning is the home folder.
    """
    forms = list(_FORMS[escapes].finditer(text))
    shell = [form["shell"] for form in forms if form["shell"]] + ["~"] * (text.startswith("~") and not home)
    unset = [form["name"] for form in forms if form["name"] and form["name"] not in environ]
    value = _FORMS[escapes].sub(lambda f: "$" if f[0] == "$$" else environ.get(f["name"] or "", f[0]), text)
    return Filled(value, tuple(unset), next(iter(shell), ""))
