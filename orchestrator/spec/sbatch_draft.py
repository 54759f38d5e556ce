"""The spec made from an sbatch script: its fields, including those of the `#SBATCH` lines, and its text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dscampaign.jobs.shared.placeholders import names_in

from .command_line import LaunchLine
from .load import secret_in
from .shell import LETTERS, Variables, option
from .slurm_section import OWNED_OPTIONS, PASSED_OPTIONS, SlurmConfig
from .slurm_syntax import gpus_of_node
from .yaml_source import parse_value, written

_FIELDS: Final = PASSED_OPTIONS | SlurmConfig.model_fields.keys()
_SIZES: Final = ("ntasks", "ntasks_per_node", "gpus", "gpus_per_task", "cpus_per_task")
_NOTED: Final = ("array", "dependency", "clusters", "wrap", "hetjob")
"""Options of sbatch that need a look, although this program sets them itself."""
MOST_POINTS: Final = 100_000
_STEPS: Final = re.compile(
    r"(?<= )(?!\S*(?:optim|sched|eval|val|test)\w*\.)(?:--?|\+{0,2}(?=[\w.-]+=))(?:\w+\.)*"
    r"(?:(?:max|num|train|total)[_-]?)*(?:steps|iters|iterations)[= ](\d+)(?= |$)"
)


@dataclass
class Draft:
    """The fields of a spec made from a script.

    Attributes:
        folder: The folder in which the next line runs.
        at: Place of the launch line.
        taken, needless, unclear: Places of lines, the latter two with a note.
    """

    name: str
    variables: Variables
    environment: Mapping[str, str]
    script: str = ""
    folder: str = "."
    fields: dict[str, str] = field(default_factory=dict)
    slurm: dict[str, str] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    container: dict[str, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    line: LaunchLine | None = None
    at: str = ""
    taken: list[str] = field(default_factory=list)
    needless: list[tuple[str, str]] = field(default_factory=list)
    unclear: list[tuple[str, str]] = field(default_factory=list)

    @property
    def matrix(self) -> dict[str, Any]:
        """An axis for each placeholder of a loop, and for that of the array, or the points of several."""
        words = (*self.line.script, *self.line.options) if self.line else ()
        texts = (*words, *self.env.values(), *self.container.values(), *self.mounts)
        used = dict.fromkeys(name for text in texts for name in names_in(text))
        loops, tasks = ([n for n in used if n in columns] for columns in (self.variables.loops, self.variables.tasks))
        axes = {name: [_value(text) for text in self.variables.loops[name]] for name in loops}
        rows = dict.fromkeys(zip(*(self.variables.tasks[name] for name in tasks), strict=True))
        if len(tasks) == 1:
            axes[tasks[0]] = [_value(text) for (text,) in rows]
        elif tasks:
            axes["array"] = [dict(zip(tasks, map(_value, row), strict=True)) for row in rows]
        return axes


def name_from(text: str) -> str:
    """Return the text as the name of a campaign."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "campaign"


def options_of(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the options of each `#SBATCH` line, with its number; a flag has the value ""."""
    options: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:
                words = [line.removeprefix("#SBATCH").strip()]
            options = {"hetjob": ""} if "hetjob" in options else {}
            while words and "hetjob" not in options:
                name, value, used = option(words, LETTERS)
                options[name], words = value, words[used:]
            yield str(number), options
        elif line.strip() and not line.startswith("#"):
            break  # sbatch reads none below the first command


def take_option(draft: Draft, place: str, name: str, value: str) -> None:
    """Take over an option, or note the reason against it."""
    text = f"--{name.replace('_', '-')}{f'={value}' if value else ''}"
    if name == "array" and (tasks := _tasks(value)):
        variables = draft.variables
        variables.values["SLURM_ARRAY_TASK_ID"] = variables.placeholder(variables.tasks, "task", tasks)
        draft.slurm["array_parallelism"] = value.partition("%")[2]
    elif name == "signal":
        draft.slurm["signal_delay_s"] = value.partition("@")[2]
    elif name in _SIZES:
        draft.sizes[name] = value
    elif name == "nodes":
        draft.slurm[name] = value.rpartition("-")[2]
    elif name == "job_name":
        draft.name = name_from(value)
    elif name == "chdir":
        draft.folder = value
    elif name.startswith("container_"):
        take_container(draft, name, value)
    elif name in _FIELDS:
        draft.slurm[name] = value or "true"
    elif name in OWNED_OPTIONS and name not in _NOTED:
        draft.needless.append((place, f"{text}: {OWNED_OPTIONS[name]}"))
        return
    else:
        draft.unclear.append((place, text + (f": {OWNED_OPTIONS[name]}" if name in OWNED_OPTIONS else "")))
        return
    draft.slurm = {key: value for key, value in draft.slurm.items() if value}
    draft.taken.append(place)


def _tasks(text: str) -> list[str]:
    """Return the tasks of `0-3`, `1,4`, `0-8:2` or `0-3%2`."""
    spans = re.findall(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,4}))?)?", text.partition("%")[0])
    ranges = [range(int(first), int(last or first) + 1, int(by or 1) or 1) for first, last, by in spans]
    return [str(task) for tasks in ranges for task in tasks][:MOST_POINTS]


def take_container(draft: Draft, name: str, value: str) -> None:
    """Take over an option of pyxis."""
    draft.container.setdefault("runtime", "pyxis")
    key = name.removeprefix("container_")
    if key == "mounts":
        folder = draft.environment.get("PWD", ".")
        draft.mounts += [re.sub(r"^\.(?=[:/])", folder, mount) for mount in draft.variables.filled(value).split(",")]
    elif key in ("image", "workdir", "writable"):
        draft.container[key] = draft.variables.filled(value) or "true"
    else:
        draft.unclear.append((draft.at or "options", f"--container-{key.replace('_', '-')}"))


def _number_at_end(text: str) -> int:
    """Return the number with which a text ends, 0 for none."""
    return int(match[0]) if (match := re.search(r"\d+$", text)) else 0


def count(draft: Draft) -> None:
    """Turn tasks, GPUs and cores into numbers of a node, and define Slurm's variables."""
    sizes = {name: _number_at_end(value) for name, value in draft.sizes.items()}
    if "nodes" not in draft.slurm and sizes.get("ntasks") and sizes.get("ntasks_per_node"):
        draft.slurm["nodes"] = str(-(-sizes["ntasks"] // sizes["ntasks_per_node"]))
    nodes = _number_at_end(draft.slurm.get("nodes", "")) or 1
    tasks = sizes.get("ntasks_per_node") or -(-sizes.get("ntasks", 1) // nodes) or 1
    if not {"gres", "gpus_per_node"} & draft.slurm.keys():
        request = draft.sizes.get("gpus") or draft.sizes.get("gpus_per_task") or ""
        gpus = sizes.get("gpus", 0) // nodes or sizes.get("gpus_per_task", 0) * tasks
        draft.slurm["gpus_per_node"] = re.sub(r"[^:]*$", str(gpus), request, count=1)
        if not gpus:
            draft.unclear.append(("options", "none asks for GPUs: set slurm.gpus_per_node if a node has some"))
    if cores := sizes.get("cpus_per_task"):
        draft.slurm["cpus_per_task"] = str(cores * tasks)
    gpus = gpus_of_node(str(_number_at_end(draft.slurm.get("gpus_per_node", ""))), draft.slurm.get("gres"))
    draft.sizes = {"nodes": str(nodes), "ranks": str(tasks), "gpus": str(gpus)}
    draft.variables.values |= {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(tasks * nodes)),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"), "{run}"),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(gpus)),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_CPUS_PER_TASK": str(cores or 1),
        "SLURM_JOB_NAME": draft.name,
        "SLURM_LOCALID": "{local_rank}",
        **dict.fromkeys(("SLURM_SUBMIT_DIR", "PWD"), "."),
    }


# The text of the spec


def yaml_of(draft: Draft, source: str) -> str:
    """Return the text of the spec."""
    lines = [f"# Made from {source} by `campaign init --from-sbatch`; next: `campaign validate`, `campaign plan`."]
    lines += [f"# Taken over: lines {_spans(draft.taken)}."]
    for head, notes in (("No longer needed", draft.needless), ("NOT UNDERSTOOD, please check", draft.unclear)):
        lines += [f"# {head}:"] * bool(notes) + [f"#   {place}: {_shown(text)}" for place, text in notes]
    return "\n".join([*lines, written(_document(draft))])


def _shown(text: str) -> str:
    words = re.split(r"[\s=]+", text) if secret_in(text) else []
    return f"{words[0]} … (a line with a secret)" if words else " ".join(text.split())


def _spans(places: list[str]) -> str:
    """Return `2-4, 7` for the lines 2, 3, 4 and 7."""
    ends = [place.partition("-")[::2] for place in places]
    lines = {line for first, last in ends for line in range(int(first), int(last or first) + 1)}
    begins = sorted(line for line in lines if line - 1 not in lines)
    lasts = sorted(line for line in lines if line + 1 not in lines)
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(begins, lasts, strict=True))


def _document(draft: Draft) -> dict[str, Any]:
    slurm = {name: _value(value) for name, value in draft.slurm.items()}
    document: dict[str, Any] = {
        "name": draft.name,
        **draft.fields,
        "slurm": slurm | ({"setup": draft.setup} if draft.setup else {}),
        "container": draft.container | ({"mounts": draft.mounts} if draft.mounts else {}),
        "env": draft.env,
        **(_command(draft, draft.line) if draft.line else {}),
        "matrix": draft.matrix,
    }
    return {name: value for name, value in document.items() if value}


def _command(draft: Draft, line: LaunchLine) -> dict[str, Any]:
    world = line.sizes.get("world", 0) // int(draft.sizes["nodes"])
    ranks = line.sizes.get("ranks") or world or (int(draft.sizes["ranks"]) if line.launcher == "srun" else 0)
    plain = re.compile(r"[\w@%+=:,./{}-]+").fullmatch
    text = " ".join(word if plain(word) else shlex.quote(word) for word in line.script)
    if steps := _STEPS.search(text):
        text = f"{text[: steps.start(1)]}{{steps}}{text[steps.end(1) :]}"
    return {
        "launcher": line.launcher,
        "launcher_options": list(line.options),
        "python": line.python,
        "ranks_per_node": 0 if ranks == int(draft.sizes["gpus"]) else ranks,
        "train": {"steps": int(steps[1])} if steps else {},
        "command": text,
    }


def _value(text: str) -> Any:
    return parse_value(text, "value") if re.fullmatch(r"-?\d+(?:\.\d+)?(?:e-?\d+)?|true", text) else text
