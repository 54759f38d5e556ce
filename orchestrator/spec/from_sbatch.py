"""A spec from an sbatch script: the parts that it takes over, that are no longer needed, and that need a look."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from .field_types import Hint
from .launch_line import LaunchLine, launch_line
from .sbatch_script import ASSIGNMENT, TASK, WORD, Statement, Variables, options_of, statements, words_of
from .secrets import findings as secrets_in
from .slurm_section import OWNED_OPTIONS, PASSED_OPTIONS, SlurmConfig
from .slurm_syntax import gpus_of_node

_FIELDS: Final = PASSED_OPTIONS | SlurmConfig.model_fields.keys()
_SIZES: Final = ("ntasks", "ntasks_per_node", "gpus", "gpus_per_task", "cpus_per_task")
_SETUP: Final = "module ml source . conda mamba micromamba spack ulimit unset eval umask".split()  # noqa: SIM905
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
_LOOP: Final = "; for a loop over values of the training, write an axis in `matrix`"
_RANKS: Final = "ranks find each other without it"
_RENDEZVOUS: Final = re.compile(
    r"MASTER_(?:ADDR|PORT)|(?:LOCAL_|NODE_|GROUP_|MACHINE_)?RANK|WORLD_SIZE|CUDA_VISIBLE_DEVICES|\w*RDZV\w*|\w*HOSTFILE"
    r"|(?:HEAD|MASTER|MAIN)_?\w*(?:NODE|ADDR|PORT|IP|HOST)\w*|NODES(?:_?ARRAY|_?LIST)?",
    re.IGNORECASE,
)
_SRUN: Final = re.compile(r"^srun(?:\s+-\S+(?:\s+\d+)?)*\s+(?=\S)")
_COMMAND: Final = re.compile(r"\$\((?!\()|`")
_WRAPPERS: Final = {"singularity": "apptainer", "apptainer": "apptainer", "ch-run": "charliecloud"}
_VALUED: Final = frozenset(
    """-B -b --bind --pwd --cwd --cd --env --env-file -H --home -W --workdir -S --scratch -o --overlay""".split()  # noqa: SIM905
)


@dataclass
class Made:
    """The fields of a spec made from a script.

    Attributes:
        at: place of the launch line.
        taken: places of the lines that were taken over.
        needless, unclear: place of a line, with a note.
    """

    name: str
    variables: Variables
    environment: Mapping[str, str]
    fields: dict[str, str] = field(default_factory=dict)
    slurm: dict[str, str] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    container: dict[str, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    tasks: list[int] = field(default_factory=list)
    line: LaunchLine | None = None
    at: str = ""
    taken: list[str] = field(default_factory=list)
    needless: list[tuple[str, str]] = field(default_factory=list)
    unclear: list[tuple[str, str]] = field(default_factory=list)


def spec_of(text: str, stem: str, environment: Mapping[str, str]) -> Made:
    """Return the fields of the spec for a script.

    Args:
        stem: name for a job without one.
        environment: the user's variables, to which the launch line may refer.
    """
    known = {name: environment[name] for name in ("HOME", "USER") if name in environment}
    made = Made(_name(stem), Variables(known), environment)
    for place, options in options_of(text):
        for name, value in options.items():
            _take_option(made, place, name, value)
    _count(made)
    parts = list(statements(text))
    for at, statement in enumerate(parts):
        _take(made, statement, rest="\n".join(later.text for later in parts[at + 1 :]))
    if made.line is None:
        made.unclear.append(("end", "no line starts a training script"))
    if made.tasks and not made.variables.axes:
        made.unclear.append(("options", "--array: write an axis in `matrix`, or `repeats`"))
    return made


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "campaign"


def _take_option(made: Made, place: str, name: str, value: str) -> None:
    text = f"--{name.replace('_', '-')}{f'={value}' if value else ''}"
    if name == "array" and _tasks(value):
        made.tasks, made.slurm["array_parallelism"] = _tasks(value), value.partition("%")[2]
    elif name == "signal":
        made.slurm["signal_delay_s"] = value.partition("@")[2]
    elif name in _SIZES:
        made.sizes[name] = value
    elif name == "job_name":
        made.name = _name(value)
    elif name == "chdir":
        made.fields["workdir"] = value
    elif name.startswith("container_"):
        _take_container(made, name, value)
    elif name in _FIELDS:
        made.slurm[name] = value or "true"
    elif name in OWNED_OPTIONS and name not in ("array", "dependency", "clusters", "wrap"):
        made.needless.append((place, f"{text}: {OWNED_OPTIONS[name]}"))
        return
    else:
        made.unclear.append((place, text + (f": {OWNED_OPTIONS[name]}" if name in OWNED_OPTIONS else "")))
        return
    made.slurm = {key: value for key, value in made.slurm.items() if value}
    made.taken.append(place)


def _tasks(text: str) -> list[int]:
    """Return the tasks of `0-3`, `1,4`, `0-8:2` or `0-3%2`."""
    spans = re.findall(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,4}))?)?", text.partition("%")[0])
    return [task for first, last, by in spans for task in range(int(first), int(last or first) + 1, int(by or 1) or 1)]


def _take_container(made: Made, name: str, value: str) -> None:
    made.container.setdefault("runtime", "pyxis")
    key = name.removeprefix("container_")
    if key == "mounts":
        here = made.environment.get("PWD", ".")
        made.mounts += [re.sub(r"^\.(?=[:/])", here, mount) for mount in made.variables.filled(value).split(",")]
    elif key in ("image", "workdir", "writable"):
        made.container[key] = made.variables.filled(value) or "true"
    else:
        made.unclear.append((made.at or "options", f"--container-{key.replace('_', '-')}"))


def _number(text: str) -> int:
    return int(match[0]) if (match := re.search(r"\d+$", text)) else 0


def _count(made: Made) -> None:
    """Turn tasks, GPUs and cores into numbers of a node, and define Slurm's variables."""
    sizes = {name: _number(value) for name, value in made.sizes.items()}
    if "nodes" not in made.slurm and sizes.get("ntasks") and sizes.get("ntasks_per_node"):
        made.slurm["nodes"] = str(-(-sizes["ntasks"] // sizes["ntasks_per_node"]))
    nodes = _number(made.slurm.get("nodes", "")) or 1
    tasks = sizes.get("ntasks_per_node") or -(-sizes.get("ntasks", 1) // nodes) or 1
    if not {"gres", "gpus_per_node"} & made.slurm.keys():
        asked = made.sizes.get("gpus") or made.sizes.get("gpus_per_task") or ""
        gpus = sizes.get("gpus", 0) // nodes or sizes.get("gpus_per_task", 0) * tasks
        made.slurm["gpus_per_node"] = re.sub(r"[^:]*$", str(gpus), asked, count=1)
        if not gpus:
            made.unclear.append(("options", "none asks for GPUs: set slurm.gpus_per_node if a node has some"))
    if cores := sizes.get("cpus_per_task"):
        made.slurm["cpus_per_task"] = str(cores * tasks)
    gpus = gpus_of_node(str(_number(made.slurm.get("gpus_per_node", ""))), made.slurm.get("gres"))
    made.sizes = {"nodes": str(nodes), "ranks": str(tasks), "gpus": str(gpus)}
    made.variables.values |= {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(tasks * nodes)),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"), "{run}"),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(gpus)),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_CPUS_PER_TASK": str(cores or 1),
        "SLURM_JOB_NAME": made.name,
        **dict.fromkeys(("SLURM_SUBMIT_DIR", "PWD"), "."),
    }


def _take(made: Made, statement: Statement, rest: str) -> None:
    place, text, words = statement.place, statement.text, statement.words
    first = words[0] if words else ""
    if statement.block or not words:
        begin, kind = text.partition("\n")[0], statement.block or "a quote that is not closed"
        made.unclear.append((place, f"{begin}: {kind}{_LOOP if kind == '`for`' else ''}"))
    elif first in ("[", "[[", "test"):
        made.unclear.append((place, f"{text}: a condition"))
    elif _take_variables(made, statement, rest):
        pass
    elif first in _SETUP and words[1:2] != ["run"]:
        made.setup.append(made.variables.filled(text))
        made.taken.append(place)
    elif first == "cd" and len(words) == 2:
        folder = Variables(dict(made.environment)).filled(made.variables.filled(words[1]))
        if "$" in folder:
            made.unclear.append((place, f"{text}: only a shell finds the folder"))
        else:
            made.fields |= {} if folder == "." else {"workdir": folder}
            made.taken.append(place)
    elif reason := _NEEDLESS.get(_SRUN.sub("", text).split()[0]) or (
        words[-1] in ("--version", "-V") and "it only prints a version"
    ):
        made.needless.append((place, f"{text}: {reason}"))
    else:
        _launch(made, place, text)


def _take_variables(made: Made, statement: Statement, rest: str) -> bool:
    """Take over variables, exported or not; return whether the statement only sets such."""
    exported = re.match(r"(?:export|declare\s+-\S+)\s+", statement.text)
    words = WORD.findall(statement.text[exported.end() if exported else 0 :])
    if not all(ASSIGNMENT.fullmatch(word) or (exported and word.isidentifier()) for word in words):
        return False
    for word in words:
        name, equals, raw = word.partition("=")
        value = raw if raw.startswith(("(", "$(", "`", '"$(')) else "".join(words_of(raw))
        if equals or (value := made.variables.values.get(name, "")):
            one = Statement(statement.place, f"export {word}") if len(words) > 1 and exported else statement
            _assign(made, one, name, value, exported=bool(exported), rest=rest)
        else:
            made.unclear.append((statement.place, f"export {name}: the script gives it no value; write it below `env`"))
    return True


def _assign(made: Made, statement: Statement, name: str, value: str, *, exported: bool, rest: str) -> None:
    """Take over a variable: an exported one is in `env`, or, if a shell has to expand it, in a line of `setup`."""
    place, text, variables = statement.place, statement.text, made.variables
    is_used = re.search(rf"\$\{{?{re.escape(name)}\b", rest) is not None
    by_task = re.fullmatch(rf"\$\{{(\w+)\[\$\{{?{TASK}\}}?\]\}}", value)
    if by_task and by_task[1] in variables.arrays:
        variables.axes[by_task[1]] = name.lower()
    of_job = {} if name in variables.values else _of_job(name, value)
    known = replace(variables, values=of_job | variables.values)
    filled = value if f"{name}='{value}'" in text else known.filled(value)
    if _RENDEZVOUS.fullmatch(name):
        made.needless.append((place, f"{text}: {_RANKS}"))
        if not _COMMAND.search(filled):
            variables.values[name] = filled
        return
    if value.startswith("(") and not _COMMAND.search(filled):
        variables.arrays[name] = words_of(filled[1:].removesuffix(")"))
    elif exported and any(secrets_in({name: value})):
        made.unclear.append((place, f"{name} {_HIDDEN}"))
        return
    elif "$" in filled or "`" in filled or value.startswith("("):
        is_known = is_used and not _COMMAND.search(filled) and not (exported and of_job)
        variables.values |= {name: filled} if is_known else {}
        if exported and not (is_known and " " in filled):
            made.setup.append(text if filled == value else _for_setup(variables, of_job, text))
        elif not is_known:
            made.unclear.append((place, f"{text}: only a shell finds its value"))
            return
    else:
        variables.values[name] = filled
        if exported and not (is_used and " " in filled) and "{" not in filled:
            made.env[name] = filled
    made.taken.append(place)


def _of_job(name: str, value: str) -> dict[str, str]:
    """Return the variable itself if its new value extends that of the job, as of `PATH=/x:$PATH`."""
    is_extended = re.search(rf"\$\{{?{name}\b", value) and not re.fullmatch(rf"\$\{{{name}:?-[^{{}}]*\}}", value)
    return {name: f"${{{name}:-}}"} if is_extended else {}


def _for_setup(variables: Variables, of_job: Mapping[str, str], text: str) -> str:
    """Return a line with the values of the script's own variables, which a job lacks."""
    own = {name: value for name, value in variables.values.items() if not re.match("SLURM_|PWD", name)}
    return replace(variables, values={**own, **of_job}).filled(text)


def _launch(made: Made, place: str, text: str) -> None:
    filled = made.variables.filled(text)
    shown = {name: value for name, value in made.environment.items() if not any(secrets_in({name: value}))}
    try:
        words = words_of(Variables(shown).filled(filled), redirected=False)
        words = _out_of_container(made, _without_variables(made, place, words))
        words = _out_of_container(made, _out_of_shell(made, place, words))
        line = launch_line(words) if words else None
    except (Hint, ValueError, IndexError) as error:
        made.unclear.append((place, f"{text}: {error}"))
        return
    if line is None or (made.line and line.launcher == "python"):
        made.unclear.append((place, f"{text}: run it before `submit`, or as a line of `slurm.setup`"))
        return
    if made.line and made.line.launcher != "python":
        made.unclear.append((place, f"{text}: a campaign has a single training script"))
        return
    if made.line:
        made.unclear.append((made.at, f"{shlex.join(made.line.script)}: run it before `submit`"))
    made.line, made.at = line, place
    for name, value in line.dropped.items():
        if name.startswith("container_"):
            _take_container(made, name, value)
    made.unclear += [(place, f"{name}: {hint}") for name, hint in line.refused.items() if "--container" not in name]
    made.unclear += [(place, f"{word}: only a shell expands it") for word in line.script if re.search(r"[$`]", word)]
    made.taken.append(place)
    if dropped := [f"--{name.replace('_', '-')}" for name in line.dropped if not re.match("u$|module|container", name)]:
        made.needless.append((place, f"{' '.join(dropped)}: the job determines them"))


def _without_variables(made: Made, place: str, words: list[str]) -> list[str]:
    while words and (words[0] in ("time", "exec", "nohup") or ASSIGNMENT.fullmatch(words[0])):
        name, _, value = words[0].partition("=")
        if any(secrets_in({name: value})):
            made.unclear.append((place, f"{name} {_HIDDEN}"))
        elif value and not _RENDEZVOUS.fullmatch(name):
            made.env[name] = value
        words = words[1:]
    return words


def _out_of_shell(made: Made, place: str, words: list[str]) -> list[str]:
    """Return the launch line inside `bash -c '...'`, which `srun` may start."""
    for at, word in enumerate(words if words[:1] in (["srun"], ["bash"], ["sh"]) else ()):
        if word in ("bash", "sh") and re.fullmatch(r"-l?c", words[at + 1]):
            *before, last = statements(made.variables.filled(words[at + 2]))
            for statement in before:
                _take(made, replace(statement, place=place), rest=last.text)
            return [*words[:at], *words_of(made.variables.filled(last.text), redirected=False)]
    return words


def _out_of_container(made: Made, words: list[str]) -> list[str]:
    """Return the launch line inside a container, which `srun` may start."""
    at = next((at for at, word in enumerate(words) if PurePosixPath(word).name in _WRAPPERS), None)
    if at is None or not (at == 0 or words[0] == "srun"):
        return words
    made.container["runtime"] = _WRAPPERS[PurePosixPath(words[at]).name]
    inside = words[at + 1 + (words[at + 1] in ("exec", "run")) :]
    while inside[0].startswith("-"):
        name, equals, value = inside[0].partition("=")
        if name in _VALUED and not equals:
            value, inside = inside[1], inside[1:]
        if name in ("-B", "-b", "--bind"):
            made.mounts += value.split(",")
        elif name in ("--pwd", "--cwd", "--cd"):
            made.container["workdir"] = value
        elif name == "--env":
            made.env |= dict(pair.split("=", 1) for pair in value.split(","))
        inside = inside[1:]
    made.container["image"] = inside[0]
    return [*words[:at], *inside[1 + (inside[1:2] == ["--"]) :]]
