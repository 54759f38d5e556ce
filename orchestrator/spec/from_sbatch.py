"""A spec from an sbatch script: the parts that it takes over, that are no longer needed, and that need a look."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from dscampaign.jobs.shared.placeholders import AT_LAUNCH

from .command_line import LaunchLine, is_start, launch_line
from .field_types import Hint
from .load import secrets_in
from .model import Spec
from .sbatch_draft import MOST_POINTS, Draft, count, name_from, options_of, take_container, take_option
from .shell import ASSIGNMENT, WORD, Statement, Variables, option, redirection_of, statements, words_of
from .slurm_section import SlurmConfig

_SETUP: Final = "module ml source . conda mamba micromamba virtualenv pip spack ulimit unset eval umask".split()  # noqa: SIM905
_NEEDLESS: Final = {
    word: reason
    for words, reason in {
        "echo printf clear date hostname pwd env printenv which type ls nvidia-smi nvcc lscpu free df scontrol squeue"
        " sacct sstat getent ip": "`campaign status`, `explain` and `doctor` show jobs, nodes and GPUs",
        "mkdir": "attempts have folders of their own; the script has to make others",
        "set shopt": "a line of `setup` that fails ends the attempt",
        "trap": "a run gets its signal from the campaign, and is resubmitted",
        "sleep wait exit true :": "the campaign watches its attempts",
    }.items()
    for word in words.split()
}
_HIDDEN: Final = "looks secret, and a spec is no place for it; set it in your shell before `submit`"
_RANKS: Final = "ranks find each other and their GPUs without it"
_OTHER_FILE: Final = "this file may start the training: read it with --from-sbatch, below the #SBATCH lines of this one"
_BEFORE: Final = "if it starts the training, write its script in `command`; else run it before `submit`, or in `setup`"
_RENDEZVOUS: Final = re.compile(
    r"MASTER_(?:ADDR|PORT)|(?:LOCAL_|NODE_|GROUP_|MACHINE_)?RANK|WORLD_SIZE|CUDA_VISIBLE_DEVICES|\w*RDZV\w*|\w*HOSTFILE"
    r"|(?:HEAD|MASTER|MAIN)_?\w*(?:NODE|ADDR|PORT|IP|HOST)\w*|NODES(?:_?ARRAY|_?LIST)?",
    re.IGNORECASE,
)
_SRUN: Final = re.compile(r"^srun(?:\s+-\S+(?:\s+\d+)?)*\s+(?=\S)")
_TAKEN: Final = frozenset({*Spec.model_fields, *SlurmConfig.model_fields, *AT_LAUNCH, "run", "repeat"})
_COMMAND: Final = re.compile(r"(?<!\\)\$\((?!\()|`")
_REFERENCE: Final = re.compile(r"\$\{?(\w+)")
_PREFIXES: Final = "time exec nohup env conda mamba micromamba uv poetry".split()  # noqa: SIM905
_EXPORTED: Final = re.compile(r"\b\w+=[^,]*")
_FOR: Final = re.compile(
    r"for\s+(?P<name>\w+)\s+in\s+(?P<words>[^;\n]+?)\s*(?:;|\n)\s*do\b(?P<body>.*)\bdone\b(?P<after>.*)", re.DOTALL
)
_RANGE: Final = re.compile(r"\{(\d+)\.\.(\d+)\}|\$\(seq\s+(\d+)\s+(\d+)\)")
_WRAPPERS: Final = {"singularity": "apptainer", "apptainer": "apptainer", "ch-run": "charliecloud"}


def spec_of(text: str, stem: str, environment: Mapping[str, str]) -> Draft:
    """Return the fields of the spec for a script; `stem` names a job without a name."""
    variables = {name: environment[name] for name in ("HOME", "USER") if name in environment}
    draft = Draft(name_from(stem), Variables(variables, taken=_TAKEN), environment, text)
    for place, options in options_of(text):
        for name, value in options.items():
            take_option(draft, place, name, value)
            if name == "export":
                _without_variables(draft, place, _EXPORTED.findall(value))
    count(draft)
    for statement in statements(text):
        _take(draft, statement)
    for name in dict.fromkeys(_REFERENCE.findall(" ".join((*draft.container.values(), *draft.mounts)))):
        draft.unclear.append((draft.at or "options", f"{name} is not set here: write its value below `container`"))
    if draft.line is None:
        draft.unclear.append(("end", "no line starts a training script: its Python script, module or launcher"))
    elif (draft.variables.loops or draft.variables.tasks) and not draft.matrix:
        draft.unclear.append(("end", "the runs of the array, or loop, do not differ: write an axis, or `repeats`"))
    return draft


def _take(draft: Draft, statement: Statement) -> None:
    place, text = statement.place, statement.text
    try:
        words = words_of(text)
    except ValueError:
        words = []
    first = words[0] if words else ""
    if statement.block or not words:
        _take_block(draft, statement)
    elif _take_variables(draft, statement):
        pass
    elif (first in _SETUP and words[1:2] != ["run"]) or re.match(r"set [-+](a|o allexport)\b", text):
        _take_setup(draft, place, draft.variables.filled(text))
    elif first == "cd" and words[1:] and words[2:3] in ([], ["||"]):
        scope = replace(draft.variables, values={**draft.environment, **draft.variables.values})
        folder = "".join(scope.words(words[1]))
        if "$" in folder or folder == "-":
            draft.unclear.append((place, f"{text}: only a shell finds the folder"))
        else:
            draft.folder = posixpath.normpath(posixpath.join(draft.folder, folder))
            draft.taken.append(place)
    elif reason := _NEEDLESS.get(_SRUN.sub("", text).split()[0]):
        draft.needless.append((place, f"{text}: {reason}"))
    else:
        _launch(draft, place, text)


def _take_setup(draft: Draft, place: str, line: str) -> None:
    if re.search(r"\$\{?[\d@*]", line):
        draft.unclear.append((place, f"{line}: a job has no arguments; write their values in `slurm.setup`"))
    else:
        draft.setup.append(line)
        draft.taken.append(place)


def _take_block(draft: Draft, statement: Statement) -> None:
    """Take over a loop that starts the training as an axis."""
    begin = statement.text.partition("\n")[0]
    loop = _FOR.fullmatch(statement.text)
    if loop:
        trial, values = deepcopy(draft), _values_of(draft, loop)
        if values:
            variables = trial.variables
            variables.values[loop["name"]] = variables.placeholder(variables.loops, loop["name"].lower(), values)
            trial.taken.append(statement.place)
        else:
            trial.variables.values.pop(loop["name"], None)
            trial.unclear.append((statement.place, f"{begin}: only a shell finds its values"))
        line = statement.line + statement.text[: loop.start("body")].count("\n")
        for inner in statements(loop["body"], line):
            _take(trial, inner)
        if trial.line is not draft.line:
            _take_redirection(trial, statement.place, loop["after"])
            vars(draft).update(vars(trial))
            return
    draft.unclear.append((statement.place, f"{begin}: only a shell understands it"))


def _values_of(draft: Draft, loop: re.Match[str]) -> list[str]:
    """Return the values of a loop's variable; none if only a shell finds them."""
    spans = (
        _RANGE.sub(lambda m: " ".join(map(str, range(int(m[1] or m[3]), int(m[2] or m[4]) + 1)[:MOST_POINTS])), word)
        for word in WORD.findall(draft.variables.filled(loop["words"]))
    )
    values = [value for span in spans for value in words_of(span)]
    return [] if any(re.search(r"[$`*?]", value) for value in values) else values


def _take_variables(draft: Draft, statement: Statement) -> bool:
    """Take over variables, exported or not; return whether the statement only sets variables."""
    exported = re.match(r"(?:export|declare\s+-\S+)\s+", statement.text)
    words = WORD.findall(statement.text[exported.end() if exported else 0 :])
    if not all(ASSIGNMENT.fullmatch(word) or (exported and word.isidentifier()) for word in words):
        return False
    for word in words:
        name, equals, raw = word.partition("=")
        value = raw if raw.startswith(("(", "$(", "`", '"$(')) else "".join(words_of(raw))
        if equals or (value := draft.variables.values.get(name, "")):
            export = replace(statement, text=f"export {word}") if len(words) > 1 and exported else statement
            _assign(draft, export, name, value, exported=bool(exported))
        else:
            draft.unclear.append((statement.place, f"export {name}: it has no value here; write it below `env`"))
    return True


def _assign(draft: Draft, statement: Statement, name: str, value: str, *, exported: bool) -> None:
    """Take over a variable: an exported one is in `env`, or, if a shell has to expand it, in a line of `setup`."""
    place, text, variables = statement.place, statement.text, draft.variables
    is_default = re.fullmatch(rf"\$\{{{name}:?-[^{{}}]*\}}", value)
    if exported and name not in variables.values and not is_default and re.search(rf"\$\{{?{name}\b", value):
        own = {name: f"${{{name}:-}}"}  # it extends the value that the job has
        _take_setup(draft, place, _for_setup(replace(variables, values=variables.values | own), text))
        return
    filled = value if f"{name}='{value}'" in text else variables.filled(value)
    is_known = not (_COMMAND.search(filled) and _COMMAND.search(text))
    is_part = is_known and " " in filled and re.search(rf"\$\{{?{re.escape(name)}\b", draft.script)  # of a command
    if is_known and value.startswith("("):
        variables.arrays[name] = words_of(filled[1:].removesuffix(")"))
    elif is_known:
        variables.values[name] = filled
    if _RENDEZVOUS.fullmatch(name) or "scontrol show hostname" in value:
        _take_ranks(draft, place, text, filled)
    elif exported and any(secrets_in({name: value})):
        draft.unclear.append((place, f"{name} {_HIDDEN}"))
    elif exported and not is_part and re.search(r"[$`]", filled):
        _take_setup(draft, place, text if filled == value else _for_setup(variables, text))
    elif not is_known:
        draft.unclear.append((place, f"{text}: only a shell finds its value"))
    else:
        draft.env |= {name: filled} if exported and not is_part else {}
        draft.taken.append(place)


def _take_ranks(draft: Draft, place: str, text: str, value: str) -> None:
    """Note that ranks need no variable, unless it leaves GPUs of the job unused."""
    is_part = "CUDA_VISIBLE" in text and re.fullmatch(r"\{(?!local_rank)\w+\}|\d+(?:,\d+)*", value)
    if is_part and (gpus := value.count(",") + 1) < int(draft.sizes["gpus"]):
        draft.unclear.append((place, f"{text}: a run uses all GPUs of its job; set slurm.gpus_per_node to {gpus}"))
    else:
        draft.needless.append((place, f"{text}: {_RANKS}"))


def _for_setup(variables: Variables, text: str) -> str:
    """Return a line with the values of the script's own variables, which a job lacks."""
    own = {name: value for name, value in variables.values.items() if not re.match("SLURM_|PWD", name)}
    return replace(variables, values=own).filled(text)


# The launch line


def _launch(draft: Draft, place: str, text: str) -> None:
    shown = {name: value for name, value in draft.environment.items() if not any(secrets_in({name: value}))}
    values = {name: Variables(shown).filled(value) for name, value in draft.variables.values.items()}
    scope = replace(draft.variables, values={**shown, **values})
    try:
        words = scope.words(text)
        begin = next((at for at, word in enumerate(words) if word in _PREFIXES), 0) if words[:1] == ["srun"] else 0
        words = _out_of_container(draft, [*words[:begin], *_without_variables(draft, place, words[begin:])])
        words = _out_of_container(draft, _out_of_shell(draft, place, words))
        line = launch_line(words) if words else None
    except (Hint, ValueError, IndexError) as error:
        advice = f"; {error.hint}" if isinstance(error, Hint) else ""
        draft.unclear.append((place, f"{text}: {error}{advice}"))
        return
    if line is None or (draft.line and _likeliness(line) <= _likeliness(draft.line)):
        is_script = line is None and words and (words[0].endswith(".sh") or words[0] in ("bash", "sh", "source"))
        advice = _OTHER_FILE if is_script else "run it once the campaign is done" if draft.line else _BEFORE
        draft.unclear.append((place, f"{text}: {advice}"))
        return
    if draft.line:
        draft.unclear.append((draft.at, f"{shlex.join(draft.line.script)}: run it before `submit`"))
    draft.at = place
    _take_redirection(draft, place, text)
    for name, value in line.dropped.items():
        if name.startswith("container_"):
            take_container(draft, name, value)
        elif name == "export":
            _without_variables(draft, place, _EXPORTED.findall(value))
    draft.line = _in_folder(draft, line)
    refused = {name.lstrip("-").replace("-", "_") for name in line.refused}
    draft.unclear += [(place, f"{name}: {hint}") for name, hint in line.refused.items() if "--container" not in name]
    draft.unclear += [(place, note) for note in dict.fromkeys(_unfilled((*line.options, *line.script)))]
    draft.taken.append(place)
    needless = (name for name in line.dropped if not re.match("u$|module|container", name) and name not in refused)
    if options := " ".join(f"--{name.replace('_', '-')}" for name in needless):
        draft.needless.append((place, f"{options}: the job determines them"))


def _likeliness(line: LaunchLine) -> int:
    """Return how likely a line starts the training, not a preparation or evaluation."""
    return 2 if line.launcher != "python" else bool(re.search("train|tun(?:e|ing)|sft", " ".join(line.script[:2])))


def _take_redirection(draft: Draft, place: str, text: str) -> None:
    """Note that output needs no file, and that a campaign retries by itself."""
    if (redirection := redirection_of(text)).strip("& "):
        draft.needless.append((place, f"{redirection}: `campaign logs` shows all output, and a failed run is retried"))


def _in_folder(draft: Draft, line: LaunchLine) -> LaunchLine:
    """Return the line with its script's path from the spec's folder."""
    if draft.folder == ".":
        return line
    if draft.container and draft.folder.startswith("/"):
        draft.container.setdefault("workdir", draft.folder)
        return line
    draft.fields["workdir"] = draft.folder  # in which the lines of `setup` begin, too
    script = line.script[0]
    path = script if script == "-m" else posixpath.normpath(posixpath.join(draft.folder, script))
    return replace(line, script=(path, *line.script[1:]))


def _unfilled(words: Iterable[str]) -> Iterator[str]:
    """Yield a note for each word of which the script does not determine the value."""
    for word in words:
        if name := _REFERENCE.search(word):
            lower = f"argument_{name[1]}" if name[1].isdecimal() else name[1].lower()
            axis = f"{{{lower}}} and an axis `{lower}: [...]`"
            yield f"${name[1]} has no value here: write it in `command`, or {axis}"
        elif re.search(r"[$`]", word):
            yield f"{word}: only a shell expands it"


def _without_variables(draft: Draft, place: str, words: list[str]) -> list[str]:
    while words and ((words[0] in _PREFIXES and words[1:2] != ["run"]) or ASSIGNMENT.fullmatch(words[0])):
        name, _, value = words[0].partition("=")
        if any(secrets_in({name: value})):
            draft.unclear.append((place, f"{name} {_HIDDEN}"))
        elif _RENDEZVOUS.fullmatch(name):
            _take_ranks(draft, place, words[0], value)
        elif "$" in value:
            _take_setup(draft, place, f'export {name}="{value}"')
        elif value:
            draft.env[name] = value
        words = words[1:]
    if words[1:2] == ["run"] and words[0] in _PREFIXES:
        begin = next((at for at, word in enumerate(words) if is_start(word)), 2)
        options = "" if words[0] in ("uv", "poetry") else " ".join(words[:begin])
        named = re.search(r" (?:-n|--name|-p|--prefix)[= ](\S+)", options)
        draft.setup.append(f"conda activate {named[1]}" if named else "source .venv/bin/activate")
        words = words[begin:]
    return words


def _out_of_shell(draft: Draft, place: str, words: list[str]) -> list[str]:
    """Return the launch line inside `bash -c '...'`, which `srun` may start."""
    for at, word in enumerate(words if words[:1] in (["srun"], ["bash"], ["sh"]) else ()):
        if word in ("bash", "sh") and re.fullmatch(r"-l?c", words[at + 1]):
            *before, last = statements(words[at + 2])
            for statement in before:
                _take(draft, replace(statement, place=place))
            _take_redirection(draft, place, last.text)
            return [*words[:at], *_without_variables(draft, place, draft.variables.words(last.text))]
    return words


def _out_of_container(draft: Draft, words: list[str]) -> list[str]:
    """Return the launch line inside a container, which `srun` may start."""
    at = next((at for at, word in enumerate(words) if PurePosixPath(word).name in _WRAPPERS), None)
    if at is None or not (at == 0 or words[0] == "srun"):
        return words
    draft.container["runtime"] = _WRAPPERS[PurePosixPath(words[at]).name]
    begin = at + 1 + (words[at + 1] in ("exec", "run"))
    starts = (i for i in range(begin, len(words)) if is_start(words[i]) or words[i] in ("bash", "sh"))
    end = next(starts, len(words))
    *before, image = words[begin : end - (words[end - 1] == "--")]
    while before:
        name, value, used = option(before, {"b": "bind", "B": "bind"})
        if name == "bind":
            draft.mounts += value.split(",")
        elif name in ("pwd", "cwd", "cd"):
            draft.container["workdir"] = value
        elif name == "env":
            draft.env |= dict(pair.split("=", 1) for pair in value.split(","))
        elif name not in ("nv", "e", "cleanenv", "no_home"):
            draft.unclear.append((draft.at or "options", f"{before[0]}: the container starts without it"))
        before = before[used:]
    draft.container["image"] = image
    return [*words[:at], *words[end:]]
