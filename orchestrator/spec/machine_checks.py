"""What is wrong with the machine that a run asks for: its GPUs, its options of sbatch, its Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dscampaign.orchestrator.errors import FieldPath, Finding

from .gpu_count import unread_gres
from .model import RunConfig
from .shell_lines import unreadable
from .slurm_section import option_meant, option_problem


def check(config: RunConfig, world_size: int, local_gpus: int) -> Iterator[Finding]:
    """Everything that is wrong with it; arguments as those of `validate.check`."""
    yield from _slurm(config)
    yield from _python(config)
    yield from _setup(config)
    yield from _local(config, world_size, local_gpus)


def _local(config: RunConfig, ranks: int, gpus: int) -> Iterator[Finding]:
    """Each rank needs a GPU of its own where this machine has any."""
    wanted = config.local.parallel * ranks
    if config.executor != "local" or not gpus or wanted <= gpus or config.env.get("DS_ACCELERATOR") == "cpu":
        return
    runs = f" of {config.local.parallel} runs at the same time" if config.local.parallel > 1 else ""
    places: tuple[FieldPath, ...] = (("local", "parallel"), ("ranks_per_node",))
    hint = "use fewer ranks, or train on the CPU: `env: {DS_ACCELERATOR: cpu}`"
    message = f"{wanted} ranks{runs} need as many GPUs, this machine has {gpus}"
    yield Finding(places if runs else places[::-1], message, hint)


def _slurm(config: RunConfig) -> Iterator[Finding]:
    slurm = config.slurm
    for name, value in (slurm.model_extra or {}).items():
        if problem := option_problem(name, value):
            places = (("slurm", name), option_meant(name))
            yield Finding(tuple(filter(None, places)), *problem, at_key=True)
    if slurm.signal_delay_s >= slurm.time_min * 60:
        hint = "raise slurm.time, or set a shorter slurm.signal_delay_s: a run needs time to train and to save"
        message = (
            f"signal_delay_s {slurm.signal_delay_s} is not shorter than the time limit of {slurm.time_min} minutes"
        )
        yield Finding((("slurm", "signal_delay_s"), ("slurm", "time")), message, hint)
    given = slurm.model_fields_set
    if config.executor == "slurm":
        yield from _gpus(config)
    memory = [name for name in ("mem", "mem_per_cpu", "mem_per_gpu") if name in {*given, *(slurm.model_extra or {})}]
    if len(memory) > 1:
        yield Finding((("slurm", memory[1]),), f"is given together with {memory[0]}", "remove one of them")


def _gpus(config: RunConfig) -> Iterator[Finding]:
    slurm, asked = config.slurm, config.slurm.gpus_per_node
    on_cpus = "gpus_per_node" in slurm.model_fields_set and asked == "0"
    kind, colon, number = asked.rpartition(":")
    if slurm.gres is not None:
        unread = unread_gres(slurm.gres)
        if unread and not (on_cpus and unread == slurm.gres and not slurm.gpus):
            message = f"{unread} does not say how many GPUs a node has"
            hint = "write gpu:8 or gpu:h100:8; for a run on CPUs, write gpus_per_node: 0 beside it"
            yield Finding((("slurm", "gres"), ("slurm", "gpus_per_node")), message, hint)
        elif "gpus_per_node" in slurm.model_fields_set and not unread:
            yield Finding((("slurm", "gres"),), "is given together with gpus_per_node", "remove one of them")
    elif colon and not int(number):
        message = f"asks for GPUs of the kind {kind}, and for none of them"
        yield Finding((("slurm", "gpus_per_node"),), message, "write 0 for a run on CPUs")
    ranks, shared = config.ranks_per_node or 0, config.env.get("DS_ACCELERATOR") != "cpu"
    if slurm.gpus and ranks > slurm.gpus and config.command is None and shared:
        places = (("ranks_per_node",), ("slurm", "gpus_per_node"), ("slurm", "gres"))
        message = f"{ranks} ranks need as many GPUs, a node has {slurm.gpus}"
        yield Finding(places, message, f"use at most {slurm.gpus}, or train on the CPU: `env: {{DS_ACCELERATOR: cpu}}`")


def _python(config: RunConfig) -> Iterator[Finding]:
    """A program with its options would be looked for under all of these words."""
    text = config.python or ""
    if re.search(r"\s-|^[^/\s]+\s", text) and not Path(text).exists():
        hint = "name the program alone; options have variables, such as `env: {PYTHONUNBUFFERED: 1}` for -u"
        yield Finding((("python",),), f"{text} is more than the name of a program", hint)


def _setup(config: RunConfig) -> Iterator[Finding]:
    """Shell lines that would end every job of the campaign at once."""
    own = config.local if config.executor == "local" else config.slurm
    if problem := unreadable(own.setup):
        line, why = problem
        places: tuple[FieldPath, ...] = ((config.executor, "setup", line), (config.executor, "setup"))
        yield Finding(places, f"bash cannot read this: {why}", "the lines of setup are one shell script")
