"""Commands that are printed for the user to type: they find the campaign, and the spec, where this one did."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate

_CARRIED: Final = frozenset({"command line", "spec"})
"""Sources of `dir` and `store` that the next command does not have by itself."""

_FILE: Final = "sqlite:///"
_SPEC: Final = re.compile(r"\bSPEC\b")

_COMMAND: Final = re.compile(
    r"(?:`|next: |^(?:\x1b\[\d+m)? *)campaign (?P<verb>[a-z]+)(?P<rest>[^`\n\x1b]*?)(?=`|   \(|, for |\x1b|$)",
    re.MULTILINE,
)


def located(text: str) -> str:
    """The text, its commands with the `--dir` and `--store` that this one was given or took from its spec.

    Where this one has a spec, they name it and its overrides in place of `SPEC`. `campaign THIS` is this command.
    """
    context = click.get_current_context(silent=True)
    text = text.replace("campaign THIS ", f"campaign {context.info_name if context else 'explain'} ")
    if "campaign " not in text or not any(place := _place()):
        return text

    verbs, (options, spec) = _verbs_with_a_place(), place

    def completed(match: re.Match[str]) -> str:
        command = _SPEC.sub(lambda _: spec, match[0]) if spec else match[0]
        has_it = any(option in match["rest"] for option in (" --dir ", " --store "))
        return command if has_it or match["verb"] not in verbs else f"{command}{options}"

    return _COMMAND.sub(completed, text)


def _place() -> tuple[str, str]:
    """The options that say where the campaign is, and the spec with its overrides; "" for what this command has not."""
    context = click.get_current_context(silent=True)
    if context is None:
        return "", ""
    given = context.params
    words = [given.get("spec") or given.get("name"), *(given.get("words") or ())]
    try:
        where = locate(PlaceOptions(given.get("dir"), given.get("store")), [str(word) for word in words if word][:1])
    except Exception:  # noqa: BLE001 - of whatever is wrong with them, the command itself has told
        return "", ""
    settings = where.settings
    values = {"dir": str(settings.dir), "store": _anywhere(settings.store_without_password)}
    carried = [one.name for one in settings.origins if one.name in values and one.source in _CARRIED]
    options = "".join(f" --{name} {shlex.quote(values[name])}" for name in carried) if "dir" in given else ""
    sets = (word for one in given.get("sets") or () for word in ("--set", one))
    return options, shlex.join([str(where.spec), *sets]) if where.spec else ""


def _anywhere(store: str) -> str:
    file = store.removeprefix(_FILE)
    return store if file == store or not file else f"{_FILE}{Path(file).absolute()}"


def _verbs_with_a_place() -> set[str]:
    root = click.get_current_context().find_root().command
    commands = root.commands if isinstance(root, click.Group) else {}
    return {name for name, command in commands.items() if _takes_a_place(command)}


def _takes_a_place(command: click.Command) -> bool:
    """Whether it, or a command of its group, takes `--dir`."""
    if isinstance(command, click.Group):
        return any(map(_takes_a_place, command.commands.values()))
    return any(param.name == "dir" for param in command.params)
