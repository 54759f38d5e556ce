"""Literal secrets in a spec: the store keeps its text, and reports show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from dscampaign.orchestrator.errors import FieldPath, Finding

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


def findings(data: Any, place: FieldPath = ()) -> Iterator[Finding]:
    """Return the secrets in a value of a spec and in all that it holds, each with its place."""
    if isinstance(data, dict):
        for name, value in data.items():
            inner = (*place, str(name))
            values = value if isinstance(value, list) else [value]
            if any(isinstance(item, str) and _is_secret(str(name), item) for item in values):
                yield _finding(inner, str(name))
            else:
                yield from findings(value, inner)
    elif isinstance(data, list):
        for index, item in enumerate(data):
            option = data[index - 1] if index else None  # of a command in words
            if isinstance(item, str) and str(option).startswith("--") and _is_secret(str(option), item):
                yield _finding((*place, index), str(option))
            else:
                yield from findings(item, (*place, index))
    elif isinstance(data, str) and (name := secret_in(data)):
        yield _finding(place, name)


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


def _finding(place: FieldPath, name: str) -> Finding:
    return Finding((place,), f"{name} looks like a secret, and a spec is kept in the store", HINT)
