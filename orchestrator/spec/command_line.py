"""The `command` of a spec: its arguments, and the programs that it may start with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from .field_types import Hint
from .shell import ASSIGNMENT, LETTERS, option

Launcher = Literal["deepspeed", "torchrun", "accelerate", "python", "srun"]

_PYTHON: Final = re.compile(r"python[\d.]*")
_MODULES: Final[Mapping[str, Launcher]] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
_PROGRAMS: Final[Mapping[str, Launcher]] = {name: name for name in _MODULES.values()}
_SIZES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("nproc_per_node", "num_gpus", "num_accelerators", "ntasks_per_node"), "ranks"),
    **dict.fromkeys(("nnodes", "num_nodes", "num_machines", "nodes"), "nodes"),
    **dict.fromkeys(("num_processes", "ntasks"), "world"),
}
"""The number that an option gives."""

_OURS: Final[Mapping[Launcher, str]] = {
    "torchrun": "rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone node_rank master_addr master_port max_restarts"
    " local_addr log_dir redirects tee use_env",
    "accelerate": "machine_rank main_process_ip main_process_port same_network rdzv_backend rdzv_conf max_restarts tee"
    " role log_dir deepspeed_hostfile deepspeed_multinode_launcher deepspeed_exclusion_filter"
    " deepspeed_inclusion_filter",
    "deepspeed": "hostfile master_port master_addr node_rank launcher launcher_args no_local_rank no_ssh no_ssh_check"
    " ssh_port force_multi save_pid enable_each_rank_log",
    "srun": "label unbuffered verbose quiet kill_on_bad_exit disable_status overlap exact whole preserve_env no_kill"
    " exclusive mpi cpu_bind accel_bind wait output error job_name export jobid cpus_per_task",
    "python": "u",
}
"""Options that this program sets itself, or that make no difference here."""

_GPUS: Final = "leave it out: ranks use the GPUs of their job"
_REFUSED: Final[Mapping[str, str]] = {
    "no_python": "launch a Python script, or a module by -m",
    **dict.fromkeys(("gpu_ids", "include", "exclude"), _GPUS),
    **dict.fromkeys(("gpus_per_task", "gpu_bind"), "leave it out: a task uses GPU number SLURM_LOCALID"),
    **dict.fromkeys(("container_image", "container_mounts", "container_workdir"), "write `container:`"),
    "autotuning": "`micro_batch: auto` searches for a micro-batch",
    "chdir": "write `workdir:`",
}
"""Options that cannot be used here, with a hint."""

_OTHERS: Final[Mapping[Launcher, str]] = {
    "srun": "write it below `slurm:`",
    "python": "write it as a variable of `env`, such as PYTHONWARNINGS",
}
"""The hint for every other option; without it, the option is passed on."""

_LETTERS: Final[Mapping[Launcher, Mapping[str, str]]] = {
    "torchrun": {"m": "module", "r": "redirects", "t": "tee"},
    "accelerate": {"m": "module"},
    "deepspeed": {"H": "hostfile", "i": "include", "e": "exclude"},
    "srun": {**LETTERS, "l": "label", "u": "unbuffered", "K": "kill_on_bad_exit", "v": "verbose"},
    "python": {"m": "module"},
}


@dataclass(frozen=True)
class LaunchLine:
    """The parts of a command that starts with a launcher.

    Attributes:
        options: For the launcher.
        script: The script and its arguments, or `-m`, a module and its arguments.
        at: Position of the script, or module, in the command.
        sizes: Numbers that the line gives: `ranks` (of a node), `nodes`, `world`.
        dropped: Options that this program sets itself, by name with `_` for `-`; a flag has "".
        refused: Options that cannot be used here, with a hint.
        python: The interpreter beside a launcher with a path; "" for none.
    """

    launcher: Launcher
    options: tuple[str, ...]
    script: tuple[str, ...]
    at: int
    sizes: Mapping[str, int]
    dropped: Mapping[str, str]
    refused: Mapping[str, str]
    python: str = ""

    def ranks_per_node(self, nodes: int) -> int | None:
        """Return the processes on each of so many nodes, None if unknown; raise Hint if they are uneven."""
        world = self.sizes.get("world")
        if world is None:
            return self.sizes.get("ranks")
        if world % nodes:
            raise Hint(
                f"starts {world} processes on {nodes} nodes", "write `ranks_per_node:`, and leave the number out"
            )
        return world // nodes


def launch_line(words: Sequence[str]) -> LaunchLine | None:
    """Return the parts of a command; None if it starts with no launcher; raise Hint if it launches no script."""
    path = PurePosixPath(words[0])
    if path.name == "srun":
        return _srun(words)
    launcher, begin = _launcher(words, path.name)
    if launcher is None:
        return None
    line = _read(launcher, words, begin)
    keeps_script = {"deepspeed": "no_local_rank"}.get(launcher, "use_env")
    if (launcher == "deepspeed" or "torch.distributed.launch" in words[:begin]) and keeps_script not in line.dropped:
        head = 2 if line.script[0] == "-m" else 1  # before the script's own arguments, as the launcher adds it
        line = replace(line, script=(*line.script[:head], "--local_rank={local_rank}", *line.script[head:]))
    if "/" not in words[0]:
        return line
    return replace(line, python=words[0] if _PYTHON.fullmatch(path.name) else str(path.with_name("python")))


def _launcher(words: Sequence[str], name: str) -> tuple[Launcher | None, int]:
    """Return the launcher, and the position of its first option."""
    if name in _PROGRAMS:
        if name == "accelerate" and words[1:2] != ["launch"]:
            raise Hint(f"starts with {' '.join(words[:2])}", "write `accelerate launch` and the script")
        return _PROGRAMS[name], 2 if name == "accelerate" else 1
    if not _PYTHON.fullmatch(name):
        return None, 0
    module = re.match(r"(?:-u )?-m (\S+)", " ".join(words[1:4]))
    if module and module[1] in _MODULES:
        return _MODULES[module[1]], words.index(module[1]) + 1
    return "python", 1


def _srun(words: Sequence[str]) -> LaunchLine:
    outer = _read("srun", words, 1)
    inner = None if ":" in outer.script else launch_line(list(outer.script))  # `:` separates several programs
    if inner is None or inner.launcher == "srun":
        raise Hint(
            f"starts {outer.script[0]} by srun", "start with a Python script or its launcher: `srun python train.py`"
        )
    dropped, refused = {**outer.dropped, **inner.dropped}, {**outer.refused, **inner.refused}
    line = replace(inner, at=outer.at + inner.at, dropped=dropped, refused=refused)
    if inner.launcher == "python":
        return replace(line, launcher="srun", sizes=outer.sizes)
    return line  # its tasks are launchers, one a node


def _read(launcher: Launcher, words: Sequence[str], begin: int) -> LaunchLine:
    """Read the options from this position on."""
    options, sizes, dropped, refused = list[str](), dict[str, int](), dict[str, str](), dict[str, str]()
    ours, others, as_module, at = _OURS[launcher].split(), _OTHERS.get(launcher, ""), False, begin
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, value, used = option(words[at:], _LETTERS[launcher], lambda word: word.startswith("-") or is_start(word))
        kept, at = words[at : at + used], at + used
        if name == "module":
            as_module = True
            if launcher == "python":
                break
        elif name in _SIZES:
            sizes |= {_SIZES[name]: int(value)} if value.isdecimal() else {}
        elif name not in ours and (hint := _REFUSED.get(name, others)):
            refused[kept[0].partition("=")[0]] = hint
        elif name not in ours:
            options += kept
            continue
        dropped[name] = value
    at += words[at : at + 1] == ["--"]
    if at >= len(words):
        raise Hint("launches no script", "write the script and its arguments")
    script = (*(("-m",) if as_module else ()), *words[at:])
    return LaunchLine(launcher, tuple(options), script, at, sizes, dropped, refused)


def is_start(word: str) -> bool:
    """Return whether an argument is a Python script, or a program that starts Python."""
    program = PurePosixPath(word).name
    return word.endswith(".py") or program in _PROGRAMS or bool(_PYTHON.fullmatch(program))


_OPERATORS: Final = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "&>"})
START: Final = "start with a Python script, `-m MODULE`, or their launcher; shell lines belong in `setup`"


def words_of(value: Any) -> Any:
    """Return the arguments of a command, as a shell splits it; raise Hint for none, or if it needs a shell."""
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Hint(f"does not split into arguments: {error}", "write a list of arguments") from error
    if not isinstance(words, list | tuple) or not words or words[0] == "":
        raise Hint("names no script", "write the script and its arguments")
    first, texts = str(words[0]), words if isinstance(value, str) else ()
    if operator := next((word for word in texts if word in _OPERATORS or word.endswith(";")), None):
        hint = "lines before the script belong in `setup`, a folder in `workdir`; the logs keep all output"
        raise Hint(f"contains {operator}, but no shell reads it", hint)
    if variable := ASSIGNMENT.fullmatch(first):
        raise Hint(f"starts with {first}, but no shell reads it", f"write `env: {{{variable[1]}: {variable[2]}}}`")
    if first.startswith("-") and first != "-m":
        raise Hint(f"starts with the option {first}", START)
    if first == "-m" and len(words) == 1:
        raise Hint("names no module", "write `-m MODULE` and its arguments")
    return words


def taken_apart(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a run, the launcher in its command in fields of its own; for a wrong command its Hint."""
    try:
        words = words_of(data["command"])
        return {**data, "command": words, **_launched(words, data)}
    except Hint as error:
        return {**data, "command": error}


def _launched(words: Sequence[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a launcher in a command sets; raise Hint if they contradict the spec."""
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
