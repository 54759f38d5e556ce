"""A command that starts with a launcher, such as `torchrun --nproc_per_node 8 train.py`: its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final, Literal

from .field_types import Hint

Launcher = Literal["deepspeed", "torchrun", "accelerate", "python", "srun"]

_PYTHON: Final = re.compile(r"python[\d.]*")
_MODULES: Final[Mapping[str, Launcher]] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
_RETRIES: Final = "leave it out: `retry` starts a run again"
_SCRIPT: Final = "launch a Python script, or a module by -m"


@dataclass(frozen=True)
class _Options:
    """The options of a launcher, with `_` for `-`.

    Attributes:
        flags: options without a value.
        ours: options that this program sets itself, or that make no difference here.
        sizes: options that give a number, and the number that they give.
        refused: options that cannot be used here, each with a hint.
        others: hint for every other option; "" if it is passed on.
    """

    flags: frozenset[str]
    ours: frozenset[str] = frozenset()
    sizes: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    others: str = ""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _letters(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


_OPTIONS: Final[Mapping[Launcher, _Options]] = {
    "torchrun": _Options(
        flags=_names("standalone module no_python run_path virtual_local_rank use_env"),
        ours=_names(
            "rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone node_rank master_addr master_port max_restarts"
            " local_addr log_dir redirects tee use_env"
        ),
        sizes={"nproc_per_node": "ranks", "nnodes": "nodes"},
        refused={"no_python": _SCRIPT, "run_path": _SCRIPT},
        short=_letters("m module r redirects t tee"),
    ),
    "accelerate": _Options(
        flags=_names(
            "quiet cpu multi_gpu tpu use_mps_device enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic"
            " dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm"
            " same_network module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 debug"
            " fp8_use_autocast_during_eval"
        ),
        ours=_names(
            "machine_rank main_process_ip main_process_port same_network rdzv_backend rdzv_conf max_restarts tee"
            " log_dir deepspeed_hostfile deepspeed_multinode_launcher"
            " deepspeed_exclusion_filter deepspeed_inclusion_filter"
        ),
        sizes={"num_processes": "world", "num_machines": "nodes"},
        refused={"no_python": _SCRIPT, "gpu_ids": "leave it out: ranks use the GPUs of their job"},
        short=_letters("m module q quiet"),
    ),
    "deepspeed": _Options(
        flags=_names(
            "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid bind_cores_to_rank quiet"
        ),
        ours=_names(
            "hostfile master_port master_addr node_rank launcher launcher_args no_local_rank no_ssh no_ssh_check"
            " ssh_port force_multi save_pid enable_each_rank_log quiet"
        ),
        sizes={"num_gpus": "ranks", "num_accelerators": "ranks", "num_nodes": "nodes"},
        refused={
            "no_python": _SCRIPT,
            "include": "leave it out: ranks use the GPUs of their job",
            "exclude": "leave it out: ranks use the GPUs of their job",
            "autotuning": "`micro_batch: auto` searches for a micro-batch",
            "elastic_training": _RETRIES,
            "venv_script": "write it in `setup`",
        },
        short=_letters("H hostfile i include e exclude q quiet"),
    ),
    "srun": _Options(
        flags=_names(
            "label unbuffered verbose quiet kill_on_bad_exit overcommit oversubscribe disable_status pty no_allocate"
            " multi_prog overlap exact whole preserve_env contiguous hold spread_job use_min_nodes no_kill exclusive"
            " propagate mem_bind_verbose interactive"
        ),
        ours=_names(
            "label unbuffered verbose quiet kill_on_bad_exit disable_status overlap exact whole preserve_env no_kill"
            " exclusive propagate mpi cpu_bind wait output error job_name export jobid cpus_per_task"
        ),
        sizes={"ntasks": "world", "ntasks_per_node": "ranks", "nodes": "nodes"},
        refused={
            "chdir": "write `workdir:`",
            "multi_prog": _SCRIPT,
            "pty": "leave it out",
            **dict.fromkeys(
                ("container_image", "container_mounts", "container_workdir", "container_name"), "write `container:`"
            ),
            **dict.fromkeys(("gpus_per_task", "gpu_bind"), "leave it out: a task uses GPU number SLURM_LOCALID"),
        },
        short=_letters(
            "n ntasks N nodes l label u unbuffered v verbose Q quiet K kill_on_bad_exit c cpus_per_task o output"
            " e error J job_name W wait X disable_status E preserve_env k no_kill D chdir s oversubscribe O overcommit"
            " p partition A account t time w nodelist x exclude G gpus"
        ),
        others="write it below `slurm:`",
    ),
    "python": _Options(
        flags=_names("u module b B d E i I O OO P q s S v x"),
        ours=_names("u"),
        short=_letters("m module"),
        others="write it as a variable of `env`, such as PYTHONWARNINGS",
    ),
}


@dataclass(frozen=True)
class LaunchLine:
    """The parts of a command that starts with a launcher.

    Attributes:
        options: options that are passed on to the launcher.
        script: the script and its arguments, or `-m`, a module and its arguments.
        at: position of the script, or module, in the command.
        sizes: numbers that the line gives: `ranks` (of a node), `nodes`, `world`.
        dropped: options that this program sets itself, by name with `_` for `-`; a flag has "".
        refused: options that cannot be used here, with a hint.
        python: the interpreter beside the launcher, if it is named by its path; "" if not.
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
        """Return the processes that it starts on each of so many nodes; None if it does not say.

        Raises:
            Hint: It starts another number on each node.
        """
        world = self.sizes.get("world")
        if world is None:
            return self.sizes.get("ranks")
        if world % nodes:
            raise Hint(
                f"starts {world} processes on {nodes} nodes", "write `ranks_per_node:`, and leave the number out"
            )
        return world // nodes


def launch_line(words: Sequence[str]) -> LaunchLine | None:
    """Return the parts of a command; None if it starts with no launcher.

    Raises:
        Hint: It launches no script, or an option has no value.
    """
    path = PurePosixPath(words[0])
    if path.name == "srun":
        return _srun(words)
    launcher, begin = _launcher(words, path.name)
    if launcher is None:
        return None
    line = _read(launcher, words, begin)
    if "torch.distributed.launch" in words[:begin] and "use_env" not in line.dropped:
        line = _with_argument(line)
    if launcher == "deepspeed" and "no_local_rank" not in line.dropped:
        line = _with_argument(line)
    if "/" not in words[0]:
        return line
    return replace(line, python=words[0] if _PYTHON.fullmatch(path.name) else str(path.with_name("python")))


def _launcher(words: Sequence[str], name: str) -> tuple[Launcher | None, int]:
    """Return the launcher, and the position of its first option."""
    if name in ("torchrun", "deepspeed"):
        return ("torchrun" if name == "torchrun" else "deepspeed"), 1
    if name == "accelerate":
        if words[1:2] != ["launch"]:
            raise Hint(f"starts with {' '.join(words[:2])}", "write `accelerate launch` and the script")
        return "accelerate", 2
    if not _PYTHON.fullmatch(name):
        return None, 0
    flags = 2 if words[1:2] == ["-u"] else 1
    if words[flags : flags + 1] == ["-m"] and (module := _MODULES.get(" ".join(words[flags + 1 : flags + 2]))):
        return module, flags + 2
    return "python", 1


def _srun(words: Sequence[str]) -> LaunchLine:
    outer = _read("srun", words, 1, module=False)
    inner = launch_line(outer.script)
    if inner is None or inner.launcher == "srun":
        raise Hint(
            f"starts {outer.script[0]} by srun", "start with a Python script or its launcher: `srun python train.py`"
        )
    dropped, refused = {**outer.dropped, **inner.dropped}, {**outer.refused, **inner.refused}
    line = replace(inner, at=outer.at + inner.at, dropped=dropped, refused=refused)
    if inner.launcher == "python":
        return replace(line, launcher="srun", sizes=outer.sizes)
    return line  # its tasks are launchers, one a node


def _with_argument(line: LaunchLine) -> LaunchLine:
    """Add the argument that the launcher would give to the script."""
    head = 2 if line.script[0] == "-m" else 1
    argument = "--local_rank={local_rank}"
    return replace(line, script=(*line.script[:head], argument, *line.script[head:]))


def _read(launcher: Launcher, words: Sequence[str], begin: int, *, module: bool = True) -> LaunchLine:
    """Read the options from this position on."""
    known = _OPTIONS[launcher]
    options, sizes, dropped, refused = list[str](), dict[str, int](), dict[str, str](), dict[str, str]()
    as_module, at = False, begin
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, value, used = _option(words, at, known)
        kept, at = words[at : at + used], at + used
        if name == "module" and module:
            as_module = True
            if launcher == "python":
                break
        elif name in known.sizes:
            dropped[name] = value
            if value.isdecimal():
                sizes[known.sizes[name]] = int(value)
        elif name in known.ours:
            dropped[name] = value
        elif name in known.refused or known.others:
            refused[kept[0].partition("=")[0]] = known.refused.get(name, known.others)
            dropped[name] = value
        else:
            options += kept
    at += words[at : at + 1] == ["--"]
    if at >= len(words):
        raise Hint("launches no script", "write the script and its arguments")
    script = (*(("-m",) if as_module else ()), *words[at:])
    return LaunchLine(launcher, tuple(options), script, at, sizes, dropped, refused)


def _option(words: Sequence[str], at: int, known: _Options) -> tuple[str, str, int]:
    """Return an option's name, its value, and the number of words that it takes."""
    word = words[at]
    text, equals, value = word.partition("=")
    if text.startswith("--"):
        name = text[2:].replace("-", "_")
    else:
        name = known.short.get(text[1:2], text[1:].replace("-", "_"))
        if text[1:2] in known.short and len(text) > 2 and name not in known.flags:  # as in -n4
            return name, word[2:], 1
    if equals or name in known.flags:
        return name, value, 1
    if at + 1 == len(words):
        raise Hint(f"launches no script: {word} has no value", "write the script and its arguments")
    return name, words[at + 1], 2
