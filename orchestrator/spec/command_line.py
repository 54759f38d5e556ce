"""The `command` of a spec: its arguments, and the programs that it may start with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from dscampaign.orchestrator.errors import Finding
from dscampaign.orchestrator.user_files import expanded, too_long

from .field_types import TOO_LONG, Hint
from .launch_line import launch_line
from .texts import filled

_OPERATORS: Final = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "&>"})
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_FOLDERS: Final = "paths start at the spec's folder"
_START: Final = "start with a Python script, `-m MODULE`, or their launcher; shell lines belong in `setup`"


def words_of(value: Any, data: Mapping[str, Any] | None = None) -> Any:
    """Return the arguments of a command; a text is split as a shell does.

    Raises:
        Hint: It has none, it needs a shell, or its launcher contradicts the fields around it (`data`).
    """
    words = split(value) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words or words[0] == "":
        raise Hint("names no script", "write the script and its arguments")
    first = str(words[0])
    if data is not None:
        _launched(words, data)
    if variable := _ASSIGNMENT.fullmatch(first):
        raise Hint(f"starts with {first}, but no shell reads it", f"write `env: {{{variable[1]}: {variable[2]}}}`")
    if first.startswith("-") and first != "-m":
        raise Hint(f"starts with the option {first}", _START)
    if first == "-m" and len(words) == 1:
        raise Hint("names no module", "write `-m MODULE` and its arguments")
    return words


def taken_apart(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a run with a launcher in its command in fields of its own; `words_of` reports errors."""
    try:
        return {**data, **_launched(words_of(data["command"]), data)}
    except Hint:
        return data


def _launched(words: Sequence[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a launcher in a command gives; raise Hint if they contradict those around it."""
    line = launch_line([str(word) for word in words])
    if line is None:
        return {}
    own = None if line.launcher == "python" else line.launcher
    launcher = data.get("launcher") or own
    if launcher is None:
        hint = "start with the script, which deepspeed launches, or write `launcher: python`; see also `python`"
        raise Hint(f"starts with {words[0]}", hint)
    if line.refused:
        option, hint = next(iter(line.refused.items()))
        raise Hint(f"{option} cannot be used here", hint)
    nodes, around = _nodes(data), data.get("ranks_per_node")
    ranks = line.ranks_per_node(nodes) or around
    both = {"launcher": (own, launcher), "nodes": (line.sizes.get("nodes"), nodes), "ranks_per_node": (ranks, around)}
    for name, (from_line, field) in both.items():
        if from_line is not None and field not in (None, from_line):
            raise Hint(f"starts with {name} {from_line}, but the spec's is {field}", "leave it out of the command")
    options = data.get("launcher_options") or ()
    fields = {"command": list(line.script), "launcher": launcher, "python": data.get("python") or line.python}
    fields["launcher_options"] = (*line.options, *options) if isinstance(options, list | tuple) else options
    return {name: value for name, value in {**fields, "ranks_per_node": ranks}.items() if value}


def _nodes(data: Mapping[str, Any]) -> int:
    slurm = data.get("slurm") or {}
    nodes = slurm.get("nodes", 1) if isinstance(slurm, Mapping) else slurm.nodes
    return nodes if isinstance(nodes, int) and nodes > 0 and data.get("executor") != "local" else 1


def split(text: str) -> list[str]:
    """Split a command as a shell does; raise Hint if only a shell understands it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Hint(f"does not split into arguments: {error}", "write a list of arguments") from error
    if operator := next((word for word in words if word in _OPERATORS or word.endswith(";")), None):
        hint = "lines to run before the script belong in `setup`; the logs keep all output"
        if words[0] == "cd":
            hint = f"write `workdir: {words[1]}`, and start the command with the script"
        raise Hint(f"contains {operator}, but no shell reads it", hint)
    return words


def shell_word(words: Sequence[Any]) -> tuple[str, str] | None:
    """Return the part of a command that a shell would expand, and a hint; `$$NAME` is a dollar that is meant."""
    texts = (filled(word, {}) for word in words if isinstance(word, str))
    form = next((text.shell or f"${{{text.unset[0]}}}" for text in texts if text.shell or text.unset), None)
    if form is None:
        return None
    hint = "write the value itself, or read the variable in the script; write $$ for a dollar that is meant"
    return f"{form} is not expanded: no shell reads it", hint


def script_problem(words: Sequence[Any], folder: Path) -> tuple[str, str] | None:
    """Return the error in the file that a command starts with, and a hint. Only nodes may have an absolute path."""
    first = str(words[0])
    if first == "-m" or "{" in first:
        return None
    if too_long(first):
        return TOO_LONG, _START
    script = folder / expanded(first)
    if first.endswith(".sh") or ("/" not in first and not first.endswith(".py") and not script.exists()):
        return f"{first} is not a Python script", _START
    if script.is_dir():
        return None if (script / "__main__.py").exists() else (f"{first} has no __main__.py", _START)
    elsewhere = first.startswith(("/", "~")) and not first.endswith(".py")
    return None if elsewhere or script.exists() else (f"no such script: {script}", _FOLDERS)


def stand_in(value: Any) -> list[str]:
    """Return a valid command with the placeholders of a wrong one, so that the rest of a spec can be checked."""
    return ["-m", "unknown", *(as_meant(word) for word in (value if isinstance(value, list) else [value]))]


def as_meant(value: Any) -> str:
    """Return the text that a value was meant to be: YAML makes a mapping of `{lr}`."""
    is_placeholder = isinstance(value, dict) and list(value.values()) == [None]
    return f"{{{next(iter(value))}}}" if is_placeholder else str(value)


def command_is_meant(finding: Finding) -> bool:
    """Return whether a finding is about the command, or a misspelt `command`."""
    return any(place[0] == "command" for place in finding.places)


def _as_word(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


Word = Annotated[str, BeforeValidator(_as_word, json_schema_input_type=str | float | bool)]
"""An argument of a command; a bare number or truth value counts as text."""
