"""The rules that connect fields of a run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.model_shapes import BYTES, BYTES_VOCABULARY, find_shape, positions_of
from dscampaign.orchestrator.errors import Finding

from . import batch_size, conflicts
from .matrix import entries, short_name
from .model import DatasetConfig, RunConfig, Spec, TrainConfig
from .slurm_section import option_problem
from .slurm_syntax import MINUTES_SECONDS, unread_gres

_SLICE: Final = re.compile(r"[\w./-]+\[(?:-?\d+%?)?:(?:-?\d+%?)?\]")
_REQUIRED: Final = {
    "model": "name a model, or give your own script as `command`",
    "dataset": "name the text to train on, or give your own script as `command`",
    "global_batch": "write the number of samples of an optimizer step over all ranks",
}
_REPOSITORY: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
"""A name on the hub."""
_SEED: Final = re.compile(r"(?:\w+[_-])?seed")


def check(config: RunConfig, world_size: int, local_gpus: int = 0) -> list[Finding]:
    """Return all errors in the configuration of a run whose fields are valid one by one."""
    findings = [*_train(config), *_batch(config, world_size), *_slurm(config)]
    if config.executor == "local":
        findings += _local(config, world_size, local_gpus)
        findings += conflicts.check(config, world_size, local_gpus)
    else:
        findings += [*_gpus(config), *conflicts.check(config, world_size, config.slurm.gpus)]
    findings += _of_command(config) if config.command is not None else _of_training(config)
    return findings


def remarks(spec: Spec) -> list[str]:
    """Return remarks on valid, but hardly intended fields: an unused section, seeds as an axis."""
    unused = "slurm" if spec.executor == "local" else "local"
    absent = unused not in spec.model_fields_set or not getattr(spec, unused).model_fields_set
    notes = [] if absent else [f"`{unused}:` is not used with `executor: {spec.executor}`"]
    times = [spec.slurm.time]
    for name, values in spec.matrix.items():
        listed = values if isinstance(values, list) else []
        times += [value for value in listed if isinstance(value, str)] if name in ("time", "slurm.time") else []
    seeds: dict[str, set[str]] = defaultdict(set)
    for setting in (setting for point in entries(spec.matrix) for setting in point.settings):
        if _SEED.fullmatch(short_name(setting.key)):
            seeds[str(setting.place[1])].add(str(setting.value))
    for name, values in seeds.items():
        if len(values) > 1:
            advice = f"for repeats of each point, write `repeats: {len(values)}` instead"
            notes.append(f"axis {name}: each seed is compared as a condition of its own; {advice}")
    for time in dict.fromkeys(times) if spec.executor == "slurm" else ():
        if match := MINUTES_SECONDS.fullmatch(time):
            minutes = match["minutes"]
            notes.append(f'slurm.time "{time}" is {minutes} minutes for Slurm; {minutes} hours are "{time}:00"')
    return notes


def _of_command(config: RunConfig) -> Iterator[Finding]:
    if config.launcher == "python" and (config.ranks_per_node or 1) > 1:
        hint = "leave it out: a script without a launcher starts its processes itself"
        yield Finding.at("ranks_per_node launcher", "launcher python starts one process per node", hint)
    if config.train.searches:
        hint = "write a number; a script that searches itself leaves it out"
        yield Finding.at("train.micro_batch", "auto is for the built-in training", hint)
    if config.retry.allow:
        hint = "leave it out: a command's own configuration cannot be changed from here"
        yield Finding.at("retry.allow", "is for the built-in training", hint)


def _of_training(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    for field in ("launcher", "launcher_options", "metrics"):
        if getattr(config, field):
            hint = "leave it out: deepspeed launches the built-in training, which reports its metrics"
            yield Finding(((field,),), "is for a script of your own", hint, at_key=True)
    for field, hint in _REQUIRED.items():
        if getattr(train, field) is None:
            yield Finding.at(f"train.{field} train", f"{field} is required", hint)
    if train.steps is None and train.epochs is None:
        yield Finding.at("train.steps train", "steps is required", "give steps, or epochs")
    yield from _model(train)
    yield from _splits(train.dataset) if train.dataset else ()


def _train(config: RunConfig) -> Iterator[Finding]:
    train = config.train
    if train.steps is not None and train.epochs is not None:
        yield Finding.at("train.epochs train.steps", "epochs is given together with steps", "remove one of them")
    if train.steps and train.schedule_steps and train.schedule_steps < train.steps:
        yield Finding.at("train.schedule_steps train.steps", f"is less than the {train.steps} steps of the run")
    if train.steps and train.warmup_steps > max(train.steps, train.schedule_steps or 0):
        message = f"warmup_steps {train.warmup_steps} is more than the {train.steps} steps of the run"
        yield Finding.at("train.warmup_steps train.steps", message)


def _batch(config: RunConfig, world_size: int) -> Iterator[Finding]:
    train = config.train
    if train.global_batch is None or world_size % train.ranks_per_sample:
        return
    try:
        shares, micro_batch = train.data_parallel(world_size), train.fixed_micro_batch or 1
        batch_size.accumulation(train.global_batch, micro_batch, shares, train.ranks_per_sample)
    except batch_size.IndivisibleError as error:
        places = "train.micro_batch " * (error.field == "micro_batch") + "train.global_batch slurm.nodes"
        yield Finding.at(f"{places} slurm.gpus_per_node slurm.gres ranks_per_node", error.message, error.hint)


def _local(config: RunConfig, ranks: int, gpus: int) -> Iterator[Finding]:
    """Require a GPU for each rank if this machine has any."""
    if config.container and config.container.runtime == "pyxis":
        hint = "use apptainer or charliecloud on this machine"
        yield Finding.at("container.runtime executor", "pyxis is a plugin of Slurm", hint)
    parallel = config.local.parallel
    if gpus and parallel * ranks > gpus and config.env.get("DS_ACCELERATOR") != "cpu":
        places = "local.parallel ranks_per_node" if parallel > 1 else "ranks_per_node local.parallel"
        runs = f" of {parallel} runs at the same time" if parallel > 1 else ""
        message = f"{parallel * ranks} ranks{runs} need as many GPUs, this machine has {gpus}"
        yield Finding.at(places, message, "use fewer ranks, or train on the CPU: `env: {DS_ACCELERATOR: cpu}`")


def _slurm(config: RunConfig) -> Iterator[Finding]:
    slurm = config.slurm
    yield from option_findings(slurm.model_extra or {})
    if (delay_s := slurm.signal_delay_s) >= slurm.time_min * 60:
        message = f"signal_delay_s {delay_s} is not shorter than the time limit of {slurm.time_min} minutes"
        hint = "raise slurm.time, or set a shorter slurm.signal_delay_s: a run needs time to train and to save"
        yield Finding.at("slurm.signal_delay_s slurm.time", message, hint)


def option_findings(options: Mapping[str, Any]) -> Iterator[Finding]:
    """Find the errors in options of sbatch that have no field of their own."""
    for name, value in options.items():
        if problem := option_problem(name, value):
            yield Finding((("slurm", name),), *problem, at_key=True)


def _gpus(config: RunConfig) -> Iterator[Finding]:
    slurm = config.slurm
    on_cpus = "gpus_per_node" in slurm.model_fields_set and slurm.gpus_per_node == "0"
    unread = unread_gres(slurm.gres) if slurm.gres else None
    if unread and not (on_cpus and unread == slurm.gres and not slurm.gpus):
        hint = "write gpu:8 or gpu:h100:8; for a run on CPUs, write gpus_per_node: 0 beside it"
        yield Finding.at("slurm.gres slurm.gpus_per_node", f"{unread} does not give a number of GPUs", hint)
    elif slurm.gres is not None and not unread and "gpus_per_node" in slurm.model_fields_set:
        yield Finding.at("slurm.gres", "is given together with gpus_per_node", "remove one of them")
    yield from _lanes(config)
    ranks, shared = config.ranks_per_node or 0, config.env.get("DS_ACCELERATOR") != "cpu"
    if slurm.gpus and ranks > slurm.gpus and config.command is None and shared:
        message = f"{ranks} ranks need as many GPUs, a {'run' if slurm.gpus_per_run else 'node'} has {slurm.gpus}"
        hint = f"use at most {slurm.gpus}, or train on the CPU: `env: {{DS_ACCELERATOR: cpu}}`"
        yield Finding.at("ranks_per_node slurm.gpus_per_run slurm.gpus_per_node slurm.gres", message, hint)


def _lanes(config: RunConfig) -> Iterator[Finding]:
    """Find what keeps runs from sharing a node."""
    slurm, own, on_node = config.slurm, config.slurm.gpus_per_run, config.slurm.node_gpus
    if not own:
        return
    if slurm.nodes > 1:
        message = f"shares a node between runs, but a run has {slurm.nodes} nodes"
        yield Finding.at("slurm.gpus_per_run slurm.nodes", message, "leave out gpus_per_run, or set slurm.nodes to 1")
    if own > on_node or on_node % own:
        sizes = ", ".join(map(str, batch_size.divisors(on_node))) if on_node else ""
        hint = f"use {sizes}" if on_node else "set slurm.gpus_per_node to the GPUs of a node"
        message = f"{own} is no equal part of {on_node} GPUs per node"
        yield Finding.at("slurm.gpus_per_run slurm.gpus_per_node", message, hint)
    if slurm.cpus_per_task and slurm.cpus_per_task < slurm.lanes:
        message = f"{slurm.cpus_per_task} CPUs are too few for {slurm.lanes} runs that share a node"
        yield Finding.at("slurm.cpus_per_task slurm.gpus_per_run", message, "ask for the CPUs of all of them")
    if config.container and config.container.runtime == "pyxis":
        message = "cannot share a node's GPUs with pyxis, whose containers see all GPUs of the job"
        hint = "use apptainer, or leave out gpus_per_run"
        yield Finding.at("slurm.gpus_per_run container.runtime", message, hint)


# The model and its tokenizer, without loading either


def _model(train: TrainConfig) -> Iterator[Finding]:
    if isinstance(train.model, str):
        yield from _model_name(train.model, train)
    elif train.model is not None:
        if not isinstance(train.model.get("model_type"), str):
            hint = "write the type of the model (gpt2, llama) beside its sizes"
            yield Finding.at("train.model.model_type train.model", "model_type is required", hint)
        vocabulary = train.model.get("vocab_size")
        if train.tokenizer == BYTES and isinstance(vocabulary, int) and vocabulary < BYTES_VOCABULARY:
            message = f"vocab_size {vocabulary} is less than the {BYTES_VOCABULARY} tokens of `{BYTES}`"
            yield Finding.at("train.model.vocab_size", message, "leave it out: it follows from the tokenizer")
        if train.tokenizer is None:
            hint = "name it (`gpt2`, or a folder), or `bytes` for a token per byte"
            yield Finding.at("train.tokenizer train", "tokenizer is required: the model has none", hint)
        if train.pretrained:
            hint = "name the model that has them, or leave pretrained out"
            yield Finding.at("train.pretrained", "a configuration has no published weights", hint)
    names = {"model": train.model, "tokenizer": train.tokenizer, "dataset": train.dataset and train.dataset.path}
    for field, text in names.items():
        if isinstance(text, str) and not Path(text).is_absolute() and not _REPOSITORY.fullmatch(text):
            message = f"{text} is neither here nor a name on the hub, as gpt2 or OWNER/NAME"
            places = f"train.{field}.path " * (field == "dataset") + f"train.{field}"
            yield Finding.at(places, message, "paths start at the spec's folder")


def _splits(dataset: DatasetConfig) -> Iterator[Finding]:
    """Find splits that local data does not have: the training would fail, or read all of a file."""
    for field, place in (("split", dataset.path), ("eval_split", dataset.eval_path or dataset.path)):
        split, path, at = getattr(dataset, field), Path(place), f"train.dataset.{field}"
        if not (split and path.is_absolute() and path.exists()):
            continue  # of the hub, or on another machine
        begin, bracket, _ = split.partition("[")
        if bracket and not _SLICE.fullmatch(split):
            yield Finding.at(at, f"{split} is not a slice", "write train[:20%], train[100:] or train[10%:50%]")
        elif path.is_file() and not bracket:
            hint = "name a folder, another file, or a slice of this one (train[:80%])"
            yield Finding.at(at, f"{path.name} is a file, which has no splits", hint)
        elif path.is_dir() and not any(file.relative_to(path).as_posix().startswith(begin) for file in path.rglob("*")):
            yield Finding.at(at, f"no file in {path} begins with {begin}", "name the beginning of a file's path in it")


def _model_name(name: str, train: TrainConfig) -> Iterator[Finding]:
    folder, hint = Path(name), "name the folder that save_pretrained() of the model writes"
    if folder.is_dir() and not (folder / "config.json").exists():
        yield Finding.at("train.model", f"the folder has no config.json: {name}", hint)
    elif folder.is_absolute() and folder.is_file():
        yield Finding.at("train.model", f"is not a folder: {name}", hint)
    shape = find_shape(name)
    if shape is not None and train.seq_len > (positions := positions_of(shape)):
        message = f"seq_len {train.seq_len} is more than the {positions} positions of {name}"
        yield Finding.at("train.seq_len train.model", message, f"use at most {positions}")
