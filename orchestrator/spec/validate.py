"""What pydantic cannot see: fields of one run that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from dscampaign.jobs.shared.user_pattern import takes_too_long
from dscampaign.orchestrator.errors import FieldPath, Finding, concerns, did_you_mean, dotted

from . import batch_size, deepspeed_conflicts, deepspeed_sections, machine_checks, model_checks, rank_groups, strategies
from .command_line import quoting_hint
from .deepspeed_sections import key_of_deepspeed
from .matrix import field_path
from .model import RunConfig, Spec
from .normalize import section
from .other_names import hint_for, meant, our_name
from .slurm_time import MINUTES_SECONDS
from .yaml_source import number_hint, written

_BATCH_TRIPLE: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_OFFLOADS: Final = {"offload_optimizer": 1, "offload_param": 3}
_WORLD: Final = (("slurm", "nodes"), ("slurm", "gpus_per_node"), ("slurm", "gres"), ("ranks_per_node",))
_REQUIRED: Final = {
    "model": "name a model, or give your own script as `command`",
    "dataset": "name the text to train on, or give your own script as `command`",
    "global_batch": "write how many samples one optimizer step takes over all ranks",
}


def check(config: RunConfig, world_size: int, local_gpus: int = 0) -> list[Finding]:
    """Everything that is wrong in the configuration of one run whose fields are valid one by one.

    Args:
        local_gpus: GPUs of this machine, which count for `executor: local`.
    """
    found = [*_train(config), *_batch(config, world_size), *machine_checks.check(config, world_size, local_gpus)]
    gpus = local_gpus if config.executor == "local" else config.slurm.gpus
    if config.deepspeed:  # what is made from `train` alone is right
        found += _deepspeed(config, world_size, gpus)
    found += [*strategies.check(config, gpus), *rank_groups.check(config, world_size), *_rules(config)]
    if config.retry.allow and config.command is not None:
        hint = "leave it out: a command's own configuration cannot be changed from here"
        found.append(Finding((("retry", "allow"),), "is for the built-in training", hint))
    return _first_causes(found)


def _first_causes(found: Sequence[Finding]) -> list[Finding]:
    """Those that would stay if each misspelt name were the one that is meant, which is missing or has its default."""
    meant = {place for finding in found if finding.at_key for place in finding.places[1:]}
    return [finding for finding in found if finding.at_key or not concerns(finding, meant)]


def remarks(spec: Spec) -> list[str]:
    """What is no error, but hardly meant: a section that the executor does not use, seeds as an axis."""
    unused = "slurm" if spec.executor == "local" else "local"
    absent = unused not in spec.model_fields_set or not getattr(spec, unused).model_fields_set
    found = [] if absent else [f"`{unused}:` is not used with `executor: {spec.executor}`"]
    return [*found, *_seeds(spec), *_misread(spec), *rank_groups.remarks(spec), *deepspeed_sections.remarks(spec)]


def _misread(spec: Spec) -> Iterator[str]:
    """Values that YAML or Slurm reads otherwise than people may mean them."""
    for name, text in spec.reworded.items():
        said = f"{text} is a number and reaches the script as {float(text)}"
        yield f'axis {name}: {said}; quote it ("{text}") to keep its text'
    axes = (
        values for name, values in spec.matrix.items() if name in ("time", "slurm.time") and isinstance(values, list)
    )
    times = dict.fromkeys([spec.slurm.time, *(value for values in axes for value in values if isinstance(value, str))])
    for time in times if spec.executor == "slurm" else ():
        if found := MINUTES_SECONDS.fullmatch(time):
            minutes = found["minutes"]
            yield f'slurm.time "{time}" is {minutes} minutes for Slurm; {minutes} hours are "{time}:00"'


def _seeds(spec: Spec) -> Iterator[str]:
    """Runs of one point that differ in their seed are its repeats only where the spec calls them so."""
    for name, values in spec.matrix.items():
        if our_name(name.rpartition(".")[2]) == "seed" and isinstance(values, list) and len(values) > 1:
            yield (
                f"axis {name}: each seed is compared as a condition of its own; `repeats: {len(values)}` in its place "
                "runs each point with as many seeds and gives it intervals over them"
            )


def validation_findings(error: ValidationError, data: Mapping[str, Any]) -> list[Finding]:
    """What pydantic says about the content of a spec, or the values of one run, in the words of a spec."""
    merged: dict[FieldPath, Finding] = {}
    for finding in (_finding(detail, data) for detail in error.errors(include_url=False)):
        place = finding.places[0]
        # A field that takes text or a mapping has one error for each.
        alternative = finding.message.removeprefix("expected ")
        old = merged.get(place)
        merged[place] = replace(old, message=f"{old.message} or {alternative}") if old else finding
    return _first_causes(list(merged.values()))


def _rules(config: RunConfig) -> Iterator[Finding]:
    for index, rule in enumerate(config.retry.rules):
        if takes_too_long(rule.match):
            hint = r"repeat nothing that repeats itself: \w+Error, not (\w+)+Error"
            places = (("retry", "rules", index, "match"), ("retry", "rules"))
            yield Finding(places, "takes too long on an ordinary line of a log", hint)
    for name, pattern in config.metrics.items():
        if takes_too_long(pattern):
            hint = r"repeat nothing that repeats itself: [\d.]+, not ([\d.]+)+"
            yield Finding((("metrics", name), ("metrics",)), "takes too long on an ordinary line of a log", hint)
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
    shares = train.data_parallel(world_size)
    try:
        micro_batch = train.fixed_micro_batch or batch_size.default_micro_batch(train.global_batch, shares)
        batch_size.accumulation(train.global_batch, micro_batch, shares)
    except ValueError as error:
        said = str(error)
        if train.ranks_per_sample > 1:
            said = said.replace(f"{shares} ranks", batch_size.sharers(world_size, train.ranks_per_sample))
        message, _, hint = said.partition("; ")
        places = (*_train_fields("micro_batch", "global_batch"), *_WORLD)
        yield Finding(places if message.startswith("micro_batch") else places[1:], message, hint)


def _train_fields(*names: str) -> tuple[FieldPath, ...]:
    return tuple(("train", name) for name in names)


def _deepspeed(config: RunConfig, world_size: int, gpus: int) -> Iterator[Finding]:
    given = config.deepspeed
    for key in _BATCH_TRIPLE:
        if key in given:
            yield Finding((("deepspeed", key),), "is made from train.global_batch and train.micro_batch", "remove it")
    yield from deepspeed_sections.misspelt(given)
    autos = list(_autos(given, ("deepspeed",)))
    yield from autos
    if config.command is None:
        yield from deepspeed_sections.unserved(config)
        if "lr" in section(given, ("optimizer", "params")):
            yield Finding((("deepspeed", "optimizer", "params", "lr"),), "is set by the schedule", "use train.lr")
    yield from deepspeed_sections.misspelt_optimizer(section(given, ("optimizer",)).get("type", "AdamW"))
    if autos:
        return
    merged = config.rendered_deepspeed()
    if all(section(merged, (name,)).get("enabled") is True for name in ("bf16", "fp16")):
        yield Finding((("deepspeed", "fp16"),), "bf16 and fp16 are both enabled", "use train.precision")
    zero = merged["zero_optimization"]
    yield from _zero(zero, section(given, ("zero_optimization",)))
    if config.command is None:
        yield from deepspeed_conflicts.check(config, merged, world_size, gpus)
    on_disk = any(section(zero, (name,)).get("device") == "nvme" for name in _OFFLOADS)
    if on_disk and config.command is None and config.train.checkpoint_every and config.train.offload != "nvme":
        yield strategies.no_checkpoints()


def _zero(zero: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Of the section as rendered, and as the spec gives it. What `train.offload` says is checked there."""

    def at(*path: str) -> FieldPath:
        return ("deepspeed", "zero_optimization", *path)

    for name, least in _OFFLOADS.items():
        offload = section(given, (name,))
        device = offload.get("device", "none")
        if device != "none" and zero["stage"] < least:
            stages = " or ".join(str(stage) for stage in range(least, 4))
            places: tuple[FieldPath, ...] = (at(name), ("train", "zero_stage"))
            yield Finding(places, f"{name} does not work with ZeRO stage {zero['stage']}", f"use stage {stages}")
        elif device == "nvme" and zero["stage"] < 3:
            message = f"device nvme needs ZeRO 3: with stage {zero['stage']} DeepSpeed would use host memory"
            yield Finding((at(name, "device"), ("train", "zero_stage")), message, "write device: cpu, or use stage 3")
        elif device == "nvme" and not offload.get("nvme_path"):
            yield Finding((at(name),), "device nvme needs nvme_path", "name a folder on a disk of the node")


def _autos(value: Any, place: FieldPath) -> Iterator[Finding]:
    """`auto` is for the Hugging Face trainer to fill in: DeepSpeed itself fails on it, but for one key of its own."""
    if value == "auto" and place[-2:] != ("data_types", "keep_in_fp32_modules"):
        yield Finding((place,), '"auto" is not a value of DeepSpeed', "write the value, or leave it out")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _autos(item, (*place, key))


def _finding(detail: Mapping[str, Any], data: Mapping[str, Any]) -> Finding:
    kind, context = detail["type"], detail.get("ctx", {})
    place: FieldPath = tuple(detail["loc"])
    if kind == "missing":
        return Finding((place,), f"{place[-1]} is required")
    place = existing(place, data)
    if kind == "extra_forbidden":
        return _unknown(place)
    if kind == "value_error":
        return Finding((place,), str(context["error"]), getattr(context["error"], "hint", None))
    known = context["expected"].split("'")[1::2] if kind == "literal_error" else ()
    hint = _unlisted(kind, detail["input"]) or _to_compare(place, detail["input"])
    hint = hint or _hint(kind, detail["input"], known, place)
    return Finding((place,), _WORDS.get(kind, detail["msg"][:1].lower() + detail["msg"][1:]).format(**context), hint)


def _unknown(place: FieldPath) -> Finding:
    """An unknown field. Of the field that was meant nothing more is said: one error for one cause."""
    *section, name = map(str, place)
    known = _fields(place[:-1])
    if path := _elsewhere(section, name):
        return Finding((place, path), "unknown field", f'did you mean "{dotted(path)}"?', at_key=True)
    ours = meant(name, known)
    places = (place, (*place[:-1], ours)) if ours else (place,)
    theirs = key_of_deepspeed(name) if section in ([], ["train"]) else None
    otherwise = f'did you mean "{theirs}"?' if theirs else None
    return Finding(places, "unknown field", hint_for(name, known, otherwise), at_key=True)


def _elsewhere(section: Sequence[str], name: str) -> FieldPath | None:
    if section:
        return (name,) if section == ["train"] and name in Spec.model_fields else None
    return ("matrix", name) if name in ("include", "exclude") else field_path(our_name(name))


def _unlisted(kind: str, given: Any) -> str | None:
    if kind not in ("dict_type", "model_type") or not isinstance(given, list) or not given:
        return None
    if all(isinstance(item, dict) and len(item) == 1 for item in given):
        return "remove the dashes in front of its fields"
    if all(isinstance(item, str) and "=" in item for item in given):
        name, _, value = given[0].partition("=")
        return f"remove the dashes, and write `{name.strip()}: {value.strip()}`"
    return None


def _to_compare(place: FieldPath, given: Any) -> str | None:
    """Where several values of a field belong that takes one."""
    key = ".".join(map(str, place))
    return f"to compare several values, list them under `matrix`, as {key}" if _may_vary(key, given) else None


def _may_vary(key: str, given: Any) -> bool:
    return isinstance(given, list) and len(given) > 0 and field_path(key) is not None


def _hint(kind: str, given: Any, known: Sequence[str], place: FieldPath) -> str | None:
    """What to write instead of a value of the wrong type, or of a word that is none of those known."""
    if kind == "string_type":
        return quoting_hint(given)
    if kind == "tuple_type" and isinstance(given, str):
        return f"write {written([given], flow=True)}"
    if kind in ("dict_type", "model_type") and place == ("deepspeed",) and isinstance(given, str):
        return "write what the file holds below `deepspeed:`; YAML also takes it as JSON"
    if kind in ("int_type", "float_type"):
        return number_hint(given) if isinstance(given, str) else None
    return did_you_mean(str(given), known, None)


_WORDS: Final = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected text",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a mapping of fields",
    "model_type": "expected a mapping of fields",
    "tuple_type": "expected a list",
    "literal_error": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "string_pattern_mismatch": "expected letters, digits, . _ - (starting with a letter or digit, at most 64)",
}


def existing(place: FieldPath, data: Any) -> FieldPath:
    """The part of pydantic's place that is in the data: it ends in the name of a type where a field takes several."""
    for length, part in enumerate(place):
        if not (isinstance(data, Mapping) and part in data) and not (isinstance(data, list) and isinstance(part, int)):
            return place[:length]
        data = data[part]  # type: ignore[index]
    return place


def _fields(place: FieldPath) -> list[str]:
    sections = Spec.model_fields
    for part in (part for part in place if not isinstance(part, int)):
        annotation = sections[str(part)].annotation if str(part) in sections else None
        kinds = (annotation, *getattr(annotation, "__args__", ()))  # such as `DatasetConfig | None`
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        sections = section.model_fields if section else {}
    return list(sections)
