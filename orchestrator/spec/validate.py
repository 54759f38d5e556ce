"""The rules that connect fields of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dscampaign.orchestrator.errors import FieldPath, Finding, concerns

from . import batch_size, deepspeed_section, model_checks, rank_groups, strategies
from .model import RunConfig, Spec
from .normalize import section
from .slurm_section import option_meant, option_problem
from .slurm_syntax import MINUTES_SECONDS, unread_gres

_WORLD: Final = (("slurm", "nodes"), ("slurm", "gpus_per_node"), ("slurm", "gres"), ("ranks_per_node",))
_REQUIRED: Final = {
    "model": "name a model, or give your own script as `command`",
    "dataset": "name the text to train on, or give your own script as `command`",
    "global_batch": "write the number of samples of an optimizer step over all ranks",
}


def check(config: RunConfig, world_size: int, local_gpus: int = 0) -> list[Finding]:
    """Return all errors in the configuration of a run whose fields are valid one by one.

    Args:
        local_gpus: GPUs of this machine, which count for `executor: local`.
    """
    found = [*_train(config), *_batch(config, world_size), *_slurm(config), *_container(config)]
    found += _local(config, world_size, local_gpus)
    gpus = local_gpus if config.executor == "local" else config.slurm.gpus
    if config.deepspeed:  # the part that is made from `train` alone is right
        found += deepspeed_section.check(config)
        saves = config.command is None and config.train.checkpoint_every and config.train.offload != "nvme"
        if saves and _on_disk(config):
            found.append(strategies.no_checkpoints())
    found += [*strategies.check(config, gpus), *_rules(config)]
    if config.train.ranks_per_sample > 1:
        found += rank_groups.check(config, world_size)
    if config.retry.allow and config.command is not None:
        hint = "leave it out: a command's own configuration cannot be changed from here"
        found.append(Finding((("retry", "allow"),), "is for the built-in training", hint))
    return first_causes(found)


def first_causes(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that stay after each misspelt name is corrected."""
    meant = {place for finding in found if finding.at_key for place in finding.places[1:]}
    return [finding for finding in found if finding.at_key or not concerns(finding, meant)]


def remarks(spec: Spec) -> list[str]:
    """Return remarks on valid, but hardly intended fields: an unused section, seeds as an axis."""
    unused = "slurm" if spec.executor == "local" else "local"
    absent = unused not in spec.model_fields_set or not getattr(spec, unused).model_fields_set
    found = [] if absent else [f"`{unused}:` is not used with `executor: {spec.executor}`"]
    found += [*_seeds(spec), *_misread(spec)]
    return found + (rank_groups.remarks(spec) if spec.train.ranks_per_sample > 1 else [])


def _misread(spec: Spec) -> Iterator[str]:
    """Find times that Slurm may read in another way than is meant."""
    axes = (
        values for name, values in spec.matrix.items() if name in ("time", "slurm.time") and isinstance(values, list)
    )
    times = dict.fromkeys([spec.slurm.time, *(value for values in axes for value in values if isinstance(value, str))])
    for time in times if spec.executor == "slurm" else ():
        if found := MINUTES_SECONDS.fullmatch(time):
            minutes = found["minutes"]
            yield f'slurm.time "{time}" is {minutes} minutes for Slurm; {minutes} hours are "{time}:00"'


def _seeds(spec: Spec) -> Iterator[str]:
    """Find seeds as an axis: runs are repeats of a point only by `repeats`."""
    for name, values in spec.matrix.items():
        if name.rpartition(".")[2] in ("seed", "random_seed") and isinstance(values, list) and len(values) > 1:
            yield (
                f"axis {name}: each seed is compared as a condition of its own; for repeats of each point, write "
                f"`repeats: {len(values)}` instead"
            )


def _rules(config: RunConfig) -> Iterator[Finding]:
    for field in ("launcher", "launcher_options"):
        if getattr(config, field) and config.command is None:
            yield Finding(((field,),), "is for a script of your own", "leave it out: deepspeed launches", at_key=True)
    if config.launcher == "python" and (config.ranks_per_node or 1) > 1:
        hint = "leave it out: a script without a launcher starts its processes itself"
        yield Finding((("ranks_per_node",), ("launcher",)), "launcher python starts one process per node", hint)
    if config.metrics and config.command is None:
        hint = "leave it out: the built-in training reports its metrics"
        yield Finding((("metrics",),), "is for a script of your own", hint, at_key=True)


def _train(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    if config.command is None:
        for field, hint in _REQUIRED.items():
            if getattr(train, field) is None:
                yield Finding((("train", field), ("train",)), f"{field} is required", hint)
        if train.steps is None and train.epochs is None:
            yield Finding((("train", "steps"), ("train",)), "steps is required", "give steps, or epochs")
        yield from model_checks.check(config)
    if train.steps is not None and train.epochs is not None:
        yield Finding(_train_fields("epochs", "steps"), "epochs is given together with steps", "remove one of them")
    if config.command is None and train.steps and (train.profile_at or 0) > train.steps:
        message = (
            f"profile_at {train.profile_at:,} is after the last of {train.steps:,} steps: nothing would be profiled"
        )
        yield Finding(_train_fields("profile_at", "steps"), message, f"write at most {max(1, train.steps - 2):,}")
    if train.steps and train.warmup_steps > train.steps:
        message = f"warmup_steps {train.warmup_steps} is more than the {train.steps} steps of the run"
        yield Finding(_train_fields("warmup_steps", "steps"), message)


def _batch(config: RunConfig, world_size: int) -> Iterator[Finding]:
    train = config.train
    if train.searches and config.command is not None:
        hint = "write a number; a script that searches itself leaves it out"
        yield Finding(_train_fields("micro_batch"), "auto is for the built-in training", hint)
    if train.global_batch is None or world_size % train.ranks_per_sample:
        return
    shares, grouped = train.data_parallel(world_size), train.ranks_per_sample
    try:
        micro_batch = train.fixed_micro_batch or 1
        batch_size.accumulation(train.global_batch, micro_batch, shares, grouped)
    except batch_size.IndivisibleError as error:
        places = (*_train_fields("micro_batch", "global_batch"), *_WORLD)
        yield Finding(places if error.field == "micro_batch" else places[1:], error.message, error.hint)


def _train_fields(*names: str) -> tuple[FieldPath, ...]:
    return tuple(("train", name) for name in names)


def _on_disk(config: RunConfig) -> bool:
    zero = config.rendered_deepspeed()["zero_optimization"]
    return any(section(zero, (name,)).get("device") == "nvme" for name in ("offload_optimizer", "offload_param"))


def _local(config: RunConfig, ranks: int, gpus: int) -> Iterator[Finding]:
    """Each rank needs a GPU of its own if this machine has any."""
    wanted = config.local.parallel * ranks
    if config.executor != "local" or not gpus or wanted <= gpus or config.env.get("DS_ACCELERATOR") == "cpu":
        return
    runs = f" of {config.local.parallel} runs at the same time" if config.local.parallel > 1 else ""
    places: tuple[FieldPath, ...] = (("local", "parallel"), ("ranks_per_node",))
    hint = "use fewer ranks, or train on the CPU: `env: {DS_ACCELERATOR: cpu}`"
    message = f"{wanted} ranks{runs} need as many GPUs, this machine has {gpus}"
    yield Finding(places if runs else places[::-1], message, hint)


def _container(config: RunConfig) -> Iterator[Finding]:
    if config.container and config.container.runtime == "pyxis" and config.executor == "local":
        hint = "use apptainer or charliecloud on this machine"
        yield Finding((("container", "runtime"), ("executor",)), "pyxis is a plugin of Slurm", hint)


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
    if config.executor == "slurm":
        yield from _gpus(config)


def _gpus(config: RunConfig) -> Iterator[Finding]:
    slurm = config.slurm
    on_cpus = "gpus_per_node" in slurm.model_fields_set and slurm.gpus_per_node == "0"
    if slurm.gres is not None:
        unread = unread_gres(slurm.gres)
        if unread and not (on_cpus and unread == slurm.gres and not slurm.gpus):
            message = f"{unread} does not give a number of GPUs"
            hint = "write gpu:8 or gpu:h100:8; for a run on CPUs, write gpus_per_node: 0 beside it"
            yield Finding((("slurm", "gres"), ("slurm", "gpus_per_node")), message, hint)
        elif "gpus_per_node" in slurm.model_fields_set and not unread:
            yield Finding((("slurm", "gres"),), "is given together with gpus_per_node", "remove one of them")
    ranks, shared = config.ranks_per_node or 0, config.env.get("DS_ACCELERATOR") != "cpu"
    if slurm.gpus and ranks > slurm.gpus and config.command is None and shared:
        places = (("ranks_per_node",), ("slurm", "gpus_per_node"), ("slurm", "gres"))
        message = f"{ranks} ranks need as many GPUs, a node has {slurm.gpus}"
        yield Finding(places, message, f"use at most {slurm.gpus}, or train on the CPU: `env: {{DS_ACCELERATOR: cpu}}`")
