"""The `#SBATCH` lines of a script, as the fields of a spec."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dscampaign.jobs.shared.placeholders import names_in

from .launch_line import LaunchLine
from .shell import LETTERS, Variables, option
from .slurm_section import OWNED_OPTIONS, PASSED_OPTIONS, SlurmConfig
from .slurm_syntax import gpus_of_node

_FIELDS: Final = PASSED_OPTIONS | SlurmConfig.model_fields.keys()
_SIZES: Final = ("ntasks", "ntasks_per_node", "gpus", "gpus_per_task", "cpus_per_task")
_NOTED: Final = ("dependency", "clusters", "wrap")
"""Options of sbatch that need a look, although this program sets them itself."""
MOST_POINTS: Final = 100_000


@dataclass
class Made:
    """The fields of a spec made from a script.

    Attributes:
        folder: the folder in which the next line runs.
        at: place of the launch line.
        taken: places of the lines that were taken over.
        needless, unclear: place of a line, with a note.
    """

    name: str
    variables: Variables
    environment: Mapping[str, str]
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
    def columns(self) -> dict[str, list[str]]:
        """The values of each placeholder that the training uses, one for each point of the sweep."""
        words = (*self.line.script, *self.line.options) if self.line else ()
        texts = (*words, *self.env.values(), *self.container.values(), *self.mounts)
        used = dict.fromkeys(name for text in texts for name in names_in(text))
        return {name: self.variables.columns[name] for name in used if name in self.variables.columns}


def name_from(text: str) -> str:
    """Return the text as the name of a campaign."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "campaign"


def options_of(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the options of each `#SBATCH` line, with its number; a flag has the value ""."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:
                words = [line.removeprefix("#SBATCH").strip()]
            options: dict[str, str] = {}
            while words:
                name, value, used = option(words, LETTERS)
                options[name], words = value, words[used:]
            yield str(number), options
        elif line.strip() and not line.startswith("#"):
            break  # sbatch reads none below the first command


def take_option(made: Made, place: str, name: str, value: str) -> None:
    """Take over an option, or note the reason against it."""
    text = f"--{name.replace('_', '-')}{f'={value}' if value else ''}"
    if name == "array" and (tasks := _tasks(value)):
        made.variables.vary("SLURM_ARRAY_TASK_ID", tasks, "task")
        made.slurm["array_parallelism"] = value.partition("%")[2]
    elif name == "signal":
        made.slurm["signal_delay_s"] = value.partition("@")[2]
    elif name in _SIZES:
        made.sizes[name] = value
    elif name == "job_name":
        made.name = name_from(value)
    elif name == "chdir":
        made.folder = value
    elif name.startswith("container_"):
        take_container(made, name, value)
    elif name in _FIELDS:
        made.slurm[name] = value or "true"
    elif name in OWNED_OPTIONS and name not in ("array", *_NOTED):
        made.needless.append((place, f"{text}: {OWNED_OPTIONS[name]}"))
        return
    else:
        made.unclear.append((place, text + (f": {OWNED_OPTIONS[name]}" if name in OWNED_OPTIONS else "")))
        return
    made.slurm = {key: value for key, value in made.slurm.items() if value}
    made.taken.append(place)


def _tasks(text: str) -> list[str]:
    """Return the tasks of `0-3`, `1,4`, `0-8:2` or `0-3%2`."""
    spans = re.findall(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,4}))?)?", text.partition("%")[0])
    ranges = [range(int(first), int(last or first) + 1, int(by or 1) or 1) for first, last, by in spans]
    return [str(task) for tasks in ranges for task in tasks][:MOST_POINTS]


def take_container(made: Made, name: str, value: str) -> None:
    """Take over an option of pyxis."""
    made.container.setdefault("runtime", "pyxis")
    key = name.removeprefix("container_")
    if key == "mounts":
        here = made.environment.get("PWD", ".")
        made.mounts += [re.sub(r"^\.(?=[:/])", here, mount) for mount in made.variables.filled(value).split(",")]
    elif key in ("image", "workdir", "writable"):
        made.container[key] = made.variables.filled(value) or "true"
    else:
        made.unclear.append((made.at or "options", f"--container-{key.replace('_', '-')}"))


def number_at_end(text: str) -> int:
    """Return the number with which a text ends, 0 for none."""
    return int(match[0]) if (match := re.search(r"\d+$", text)) else 0


def count(made: Made) -> None:
    """Turn tasks, GPUs and cores into numbers of a node, and define Slurm's variables."""
    sizes = {name: number_at_end(value) for name, value in made.sizes.items()}
    if "nodes" not in made.slurm and sizes.get("ntasks") and sizes.get("ntasks_per_node"):
        made.slurm["nodes"] = str(-(-sizes["ntasks"] // sizes["ntasks_per_node"]))
    nodes = number_at_end(made.slurm.get("nodes", "")) or 1
    tasks = sizes.get("ntasks_per_node") or -(-sizes.get("ntasks", 1) // nodes) or 1
    if not {"gres", "gpus_per_node"} & made.slurm.keys():
        asked = made.sizes.get("gpus") or made.sizes.get("gpus_per_task") or ""
        gpus = sizes.get("gpus", 0) // nodes or sizes.get("gpus_per_task", 0) * tasks
        made.slurm["gpus_per_node"] = re.sub(r"[^:]*$", str(gpus), asked, count=1)
        if not gpus:
            made.unclear.append(("options", "none asks for GPUs: set slurm.gpus_per_node if a node has some"))
    if cores := sizes.get("cpus_per_task"):
        made.slurm["cpus_per_task"] = str(cores * tasks)
    gpus = gpus_of_node(str(number_at_end(made.slurm.get("gpus_per_node", ""))), made.slurm.get("gres"))
    made.sizes = {"nodes": str(nodes), "ranks": str(tasks), "gpus": str(gpus)}
    made.variables.values |= {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(tasks * nodes)),
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"), "{run}"),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(gpus)),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_CPUS_PER_TASK": str(cores or 1),
        "SLURM_JOB_NAME": made.name,
        "SLURM_LOCALID": "{local_rank}",
        **dict.fromkeys(("SLURM_SUBMIT_DIR", "PWD"), "."),
    }
