"""What a shell offers for a word: campaigns, runs, conditions, templates, fields of the spec; and its script.

Somebody has pressed a key and waits: nothing here loads pydantic or SQLAlchemy.
"""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from glob import escape, glob
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import EXIT_OK

from .options import verb
from .output import echo

SHELLS: Final = ("bash", "zsh", "fish")
_VARIABLE: Final = "_CAMPAIGN_COMPLETE"
"""Click's: what a shell sets to ask for words."""

_REPEAT: Final = re.compile(r"-r\d+$")

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


@verb
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script for your shell.

    It completes commands, campaigns, runs, conditions, templates and fields of `--set`.

    Examples:
      bash   echo 'eval "$(campaign completion bash)"' >> ~/.bashrc
      zsh    echo 'eval "$(campaign completion zsh)"' >> ~/.zshrc
      fish   campaign completion fish > ~/.config/fish/completions/campaign.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(ctx.find_root().command, {}, "campaign", _VARIABLE).source())
    return EXIT_OK


class _Bash(BashComplete):
    """Click's, but for `FIELD=WORD`, which bash takes for three words: it asks for the last, and wants that alone."""

    source_template = BashComplete.source_template.replace(
        "    return 0\n", "    [[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace\n    return 0\n"
    )
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before, and the one to complete."""
        words, last = super().get_completion_args()
        *before, whole = joined = _joined([*words, last])
        if len(joined) <= len(words):
            self._before = whole[: whole.rindex("=") + 1]
        return before, whole

    def format_completion(self, item: CompletionItem) -> str:
        """A line for the script."""
        return f"{item.type},{item.value.removeprefix(self._before)}"


add_completion_class(_Bash)


def _joined(words: list[str]) -> list[str]:
    """The words with each `=` and what follows it added to the word before."""
    found: list[str] = []
    for word, previous in zip(words, ["", *words], strict=False):
        if found and "=" in (word, previous):
            found[-1] += word
        else:
            found.append(word)
    return found


def completing() -> bool:
    """Whether a shell asks for words, and not a user for anything."""
    return _VARIABLE in os.environ


def _silent(offered: Callable[[dict[str, Any], str], Iterable[str]]) -> Completer:
    """A completer that offers what begins like the word; nothing, without a message, where anything fails."""

    @wraps(offered)
    def completer(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = [word for word in offered(ctx.params, incomplete) if word.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a message would land in the line that the user types
            return []
        return list(dict.fromkeys(found))

    return completer


@_silent
def campaign_names(given: dict[str, Any], incomplete: str) -> Iterable[str]:
    """Campaigns of the store, and spec files."""
    return [*_runs(given, with_runs=False), *_specs(incomplete)]


campaign_argument: Final = click.argument("name", metavar="[NAME]", required=False, shell_complete=campaign_names)
"""The campaign that a command is about, where several may be."""


@_silent
def campaign_then_runs(given: dict[str, Any], incomplete: str) -> Iterable[str]:
    """First a campaign, or a run where there is one campaign; then its runs."""
    words = given.get("words") or ()
    runs = _runs(given, words[0] if words else None)
    alone = next(iter(runs.values())) if len(runs) == 1 else []
    return [name for name in alone if name not in words] if words else [*runs, *_specs(incomplete), *alone]


@_silent
def runs_of_campaign(given: dict[str, Any], _incomplete: str) -> Iterable[str]:
    """Runs of the campaign that was named before, without those that were named, too."""
    return [name for names in _runs(given, given.get("name")).values() for name in names if name not in given["runs"]]


@_silent
def operands(given: dict[str, Any], _incomplete: str) -> Iterable[str]:
    """What can be compared: campaigns, conditions, runs."""
    words, runs = given.get("words") or (), _runs(given)
    chosen = [runs[words[0]]] if words and words[0] in runs else runs.values()
    names = [name for found in chosen for name in found]
    return [*runs, *_conditions(names), *names]


@_silent
def conditions(given: dict[str, Any], _incomplete: str) -> Iterable[str]:
    """Conditions of the campaign."""
    return _conditions(name for names in _runs(given, given.get("name")).values() for name in names)


@_silent
def groups(_given: dict[str, Any], _incomplete: str) -> Iterable[str]:
    """Groups of the user."""
    from dscampaign.db.completion_names import is_plain

    return filter(is_plain, (grp.getgrgid(gid).gr_name for gid in os.getgroups()))


@_silent
def template_names(_given: dict[str, Any], _incomplete: str) -> Iterable[str]:
    """What `campaign init --from` takes."""
    from dscampaign.orchestrator.spec.templates import templates

    return [one.name for one in templates()]


@_silent
def field_values(_given: dict[str, Any], incomplete: str) -> Iterable[str]:
    """`FIELD=`, and `FIELD=WORD` once the field is clear: shells take what stands before the sign for a word."""
    from dscampaign.orchestrator.spec.fields import settable_fields

    fields = [
        (name, words)
        for name, words in settable_fields().items()
        if f"{name}=".startswith(incomplete.split("=", maxsplit=1)[0])
    ]
    if len(fields) == 1 or "=" in incomplete:
        return [f"{name}={word}" for name, words in fields for word in words or ("",)]
    return [f"{name}=" for name, _ in fields]


def _runs(given: dict[str, Any], name: str | None = None, *, with_runs: bool = True) -> dict[str, list[str]]:
    from dscampaign.db.completion_names import read_names
    from dscampaign.files.ownership import distrust

    if name and (file := Path(name)).is_file() and distrust(file):  # it may name any store
        return {}
    where = locate(PlaceOptions(given.get("dir"), given.get("store")), [name] if name else ())
    return read_names(where.settings.store, where.name, with_runs=with_runs)


def _conditions(runs: Iterable[str]) -> list[str]:
    return [_REPEAT.sub("", name) for name in runs]


def _specs(incomplete: str) -> list[str]:
    from dscampaign.db.completion_names import is_plain

    paths = (path for ending in ("yaml", "yml") for path in glob(f"{escape(incomplete)}*.{ending}"))  # noqa: PTH207 - as typed
    return [path for path in paths if is_plain(path)]
