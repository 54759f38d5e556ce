"""The texts of a spec, which the store keeps: `${NAME}`, forms for a shell, literal secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from dscampaign.orchestrator.errors import FieldPath, Finding

_FORM: Final = re.compile(r"\$\$(?=[\w{(])|\$\{(?P<name>[A-Za-z_]\w*)\}|(?P<shell>\$(?:\w+|\{[^{}]*\}?|\())")
"""A dollar that is meant, as in `$$NAME`; a variable; and a form for a shell."""


class Filled(NamedTuple):
    """A text with the values of its variables, those without one, and the first form for a shell."""

    text: str
    unset: tuple[str, ...]
    shell: str

    @property
    def hint(self) -> str:
        """The text to write instead of the form for a shell."""
        if self.shell == "~":
            return "write ${HOME}"
        name = re.match(r"\$\{?([A-Za-z_]\w*)", self.shell)
        return f"write {f'${{{name[1]}}}' if name else 'the value'}, or ${self.shell} if the dollar is meant"


def filled(text: str, environ: Mapping[str, str], *, home: bool = True) -> Filled:
    """Fill in the variables of a text; with `home`, a `~` at its beginning is the home folder."""
    forms = list(_FORM.finditer(text))
    shell = [form["shell"] for form in forms if form["shell"]] + ["~"] * (text.startswith("~") and not home)
    unset = [form["name"] for form in forms if form["name"] and form["name"] not in environ]
    value = _FORM.sub(lambda f: "$" if f[0] == "$$" else environ.get(f["name"] or "", f[0]), text)
    return Filled(value, tuple(unset), next(iter(shell), ""))


_NAME: Final = re.compile(
    r"""(?:^|_)(?:
      pass|pgpass|passwd|\w*password|passphrase|sshpass|\w+_pwd|secret|credentials?|auth|authorization|bearer|apikey
      |(?:api|access|private|secret)_key
      |(?:^|hf_|hub_|git(?:hub|lab)?_|api_|access_|auth_|bearer_|wandb_)token
    )$""",
    re.VERBOSE,
)
"""Names of secrets, in lower case with underscores."""

_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[\w.-]{12,}"
    r"|\blogin\s+[0-9a-f]{40}|BEGIN [A-Z ]*PRIVATE KEY"
)
"""Tokens whose makers publish their form."""

_ADDRESS: Final = re.compile(r"://(?:[^/\s:@'\"]*:(?!\$|\d+/)[^\s@'\"]+|(?=[^/@]*\d)[A-Za-z0-9_]{20,})@")
"""A password, or a token as the user, in an address; `${NAME}` in its place is filled in elsewhere."""

_VALUE: Final = r"""(?:(?:bearer|basic)\s+)?("[^"]*"|'[^']*'|[^\s"',;&|)}]+)"""
_GIVEN: Final = re.compile(
    rf"(?:(?<![\w-])(-{{0,2}}[A-Za-z][\w.-]*)[\"']?\s*[=:]\s*|(?<!\S)(--[A-Za-z][\w.-]*)\s+)(?={_VALUE})", re.IGNORECASE
)
"""`NAME=value`, `--name value`, `name: value`, `?name=value`; the value may hold further secrets."""

_REFERENCE: Final = re.compile(
    r"[\"']?(?:\$|\{|<|\[|~?/|\.{1,2}/|-{1,2}[a-z]|(?:true|false|none|null|\d+)$)", re.IGNORECASE
)
"""A value that is no secret: a variable, a placeholder, a path, an option, a switch, a number."""

HINT: Final = "export it in your shell instead, and where the reconciler runs: jobs inherit their environment"


def findings(data: Any, place: FieldPath = (), name: str = "") -> Iterator[Finding]:
    """Return the secrets in a value of a spec and in all that it holds, each with its place."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from findings(value, (*place, str(key)), str(key))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            before = str(data[index - 1]) if index else ""  # of a command in words
            yield from findings(item, (*place, index), before if before.startswith("--") else name)
    elif isinstance(data, str) and (secret := name if _is_secret(name, data) else secret_in(data)):
        yield Finding((place,), f"{secret} looks like a secret, and a spec is kept in the store", HINT)


def secret_in(text: str) -> str:
    """Return the kind of an apparent secret in a text, without the secret itself; "" for none."""
    if _TOKEN.search(text):
        return "a part of it"
    if _ADDRESS.search(text):
        return "the password in an address"
    pairs = ((match[1] or match[2], match[3]) for match in _GIVEN.finditer(text))
    return next((name for name, value in pairs if _is_secret(name, value)), "")


def _is_secret(name: str, value: str) -> bool:
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()).strip("_")
    return bool(value) and _NAME.search(words) is not None and not _REFERENCE.match(value)
