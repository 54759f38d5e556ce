"""Secrets in a spec: its text is kept in the store and shown in reports, so a secret in it is a secret given away.

A secret is known by its name (`WANDB_API_KEY`, `--db-password`, `"api_key":`) or by its own form (`hf_…`, a private
key, an address with a password). Every text is looked at, whatever field holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from dscampaign.orchestrator.errors import FieldPath, Finding

_ALWAYS: Final = frozenset(
    """PASS PASSWD PASSWORD PASSPHRASE PASSCODE PWD PW SECRET SECRETS CREDENTIAL CREDENTIALS CREDS APIKEY AUTH BEARER
    COOKIE SSHPASS PGPASS AUTHORIZATION""".split()  # noqa: SIM905
)
"""Last words of names whose value is a secret, whatever it looks like."""

_KEYS: Final = frozenset("API ACCESS PRIVATE SECRET SIGNING ENCRYPTION MASTER ACCOUNT SSH DEPLOY LICENSE".split())  # noqa: SIM905
"""Words before KEY that make it a secret; another key (SORT_KEY) is one if its value looks like one."""

_OF_TEXT: Final = frozenset(
    """PAD EOS BOS UNK MASK SEP CLS SPECIAL STOP IMAGE VIDEO AUDIO START END NEWLINE PREFIX SUFFIX MAX MIN NUM N PER
    TOTAL DECODER FIRST LAST NEXT""".split()  # noqa: SIM905
)
"""Words before TOKEN that make it a piece of text."""

_KNOWN: Final = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      (?:hf_|sk-|sk_(?:live|test)_|gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|AKIA|ASIA|AIza|ya29\.|dop_v1_|pypi-|npm_|nvapi-|r8_)
        [\w.-]{12,}
      | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
      | -----BEGIN\ [A-Z\ ]*PRIVATE\ KEY-----
      | https://hooks\.slack\.com/services/\w+
    )""",
    re.VERBOSE,
)
"""Tokens whose form their makers publish."""

_ADDRESS: Final = re.compile(r"://[^/\s:@'\"]*:(?!\$|\d+/)[^\s@'\"]+@")
"""A password in an address; `${NAME}` in its place is filled in elsewhere."""
_USER: Final = re.compile(r"https?://([^/\s:@'\"$]+)@")
"""The user of an address, which may be a token."""
_SHORT: Final = re.compile(
    r"""\b(?:sshpass\s+-p\s*|mysql\w*\s(?:[^;&|]*\s)?-p(?=\S)|(?:curl|wget)\s(?:[^;&|]*\s)?(?:-u|--user)[\s=]*["']?[^\s:"']+:)
    (?!["']?(?:\$|\{|["']|\s|$))""",
    re.VERBOSE,
)
"""Passwords that well-known commands take behind an option that does not name them."""

_VALUE: Final = r"""(?:(?:bearer|basic)\s+)?("[^"]*"|'[^']*'|[^\s"',;&|)}]+)"""
_GIVEN: Final = re.compile(rf"(?<![\w-])(-{{0,2}}[A-Za-z][\w.-]*)[\"']?\s*[=:]\s*(?={_VALUE})", re.IGNORECASE)
"""`NAME=value`, `--name=value`, `name: value`, `?name=value`; the value may hold further ones."""
_OPTION: Final = re.compile(rf"(?<!\S)(--[A-Za-z][\w.-]*)\s+(?={_VALUE})", re.IGNORECASE)
_LOGIN: Final = re.compile(r"\blogin\b.*?\s([0-9a-zA-Z_-]{32,})(?=\s|$)")
_REFERENCE: Final = re.compile(
    r"[\"']?(?:\$|\{|<|\[|~?/|\.{1,2}/|true$|false$|none$|null$|yes$|no$|-{1,2}[a-z])", re.IGNORECASE
)
"""What names a secret's place, or is none: a variable, a placeholder, a path, a special token, a switch, an option."""

HINT: Final = "export it in your shell instead, and where the reconciler runs: jobs inherit their environment"


def findings(data: Any, place: FieldPath = ()) -> Iterator[Finding]:
    """The secrets in a value of a spec and in all that it holds, each with its place.

    Args:
        data: what YAML made of the spec, or of a part of it.
        place: where that stands.
    """
    if isinstance(data, dict):
        for name, value in data.items():
            here = (*place, name if isinstance(name, int) else str(name))
            if isinstance(value, str | int) and not isinstance(value, bool) and _names_secret(str(name), str(value)):
                yield _finding(here, str(name))
            elif isinstance(value, list) and any(isinstance(v, str) and _names_secret(str(name), v) for v in value):
                yield _finding(here, str(name))  # the values of an axis
            else:
                yield from findings(value, here)
    elif isinstance(data, list):
        yield from _in_list(data, place)
    elif isinstance(data, str) and (said := secret_in(data)):
        yield _finding(place, said)


def secret_in(text: str) -> str:
    """What in a text looks like a secret, without the secret itself; "" if nothing does."""
    if _KNOWN.search(text):
        return "a part of it"
    if _ADDRESS.search(text):
        return "the password in an address"
    if any(_random(user) for user in _USER.findall(text)):
        return "the user in an address"
    if _SHORT.search(text):
        return "the password of a command"
    if _LOGIN.search(text):
        return "what follows `login`"
    said = (match for pattern in (_GIVEN, _OPTION) for match in pattern.finditer(text))
    return next((name for name, value in (match.groups() for match in said) if _names_secret(name, value)), "")


def _in_list(items: list[Any], place: FieldPath) -> Iterator[Finding]:
    """Words of a command may be an option and its value."""
    for index, item in enumerate(items):
        before = items[index - 1] if index else None
        if (
            isinstance(item, str)
            and isinstance(before, str)
            and before.startswith("--")
            and _names_secret(before, item)
        ):
            yield _finding((*place, index), before)
        else:
            yield from findings(item, (*place, index))


def _names_secret(name: str, value: str) -> bool:
    words = [word for word in re.split(r"[^A-Z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).upper()) if word]
    if not words or not value or _REFERENCE.match(value) or words in (["PWD"], ["OLDPWD"]):
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _ALWAYS or last.endswith(("PASSWORD", "PASSWD", "APIKEY")):
        return True
    if last == "KEY":
        return before in _KEYS or (bool(before) and _random(value))
    if last == "TOKEN":
        return before not in _OF_TEXT and not value.isdigit() and len(words) + len(value) > 1
    return last in ("PAT", "ID", "CODE", "SIG", "SIGNATURE", "DSN", "WEBHOOK") and _random(value)


def _random(value: str) -> bool:
    """Whether a text has the look of something drawn by chance: long, unspaced, of letters and digits."""
    value = value.strip("\"'")
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return len(value) >= 16 and mixed and not re.search(r"\s|/|\.(?:py|json|ya?ml|txt|pt|bin)$", value)


def _finding(place: FieldPath, name: str) -> Finding:
    return Finding((place,), f"{name} looks like a secret, and a spec is kept in the store", HINT)
