"""Expand a spec to its runs. Pure; a run does not depend on other points of the matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from json import JSONDecoder, JSONEncoder, loads
from typing import Any, Final

from pydantic import ValidationError

from dscampaign.db.states import Stage
from dscampaign.db.storable import to_json
from dscampaign.jobs.shared.ds_config import merged
from dscampaign.orchestrator.commands import counted
from dscampaign.orchestrator.errors import FieldPath, Finding, InvalidSpec, concerns, dotted

from . import batch_size
from .effects import DESCRIBES_ONLY
from .field_types import Scalar, SpecSection
from .matrix import Path, Point, Texts, fields_of, points, run_name, values_of
from .model import STRATEGIES, RunConfig, Spec
from .validate import check

_CAMPAIGN_FIELDS = frozenset(Spec.model_fields) - frozenset(RunConfig.model_fields)
_MACHINE = frozenset({"partition", "constraint", "gres", "gpus_per_node", "gpus_per_run", "cpus_per_task"})
_REPEATED: Final = 3
"""Most errors for points that repeat an experiment: two axes may make hundreds."""

_SECTIONS = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, SpecSection)
}

_COMMAND: Final = '"command": '
_EXPERIMENT: Final = JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)

Origins = dict[FieldPath, FieldPath]
"""The place in the spec that set each field, if it is another than the field's own."""

CheckOptions = Callable[[Sequence[RunConfig]], Sequence[Sequence[Finding]]]


@dataclass(frozen=True)
class Run:
    """One point of the matrix, with one repeat.

    Attributes:
        name: Unique in its campaign, safe as a folder's name, at most 100 characters.
        params: The values that the matrix sets, by short names.
        config_hash: 16 hexadecimal digits that identify the experiment.
        config: With the values that the spec left to defaults or to this machine.
        ordinal: Its place in the campaign, if not that in the spec.
    """

    name: str
    params: dict[str, Scalar | None]
    repeat: int
    config: RunConfig
    config_hash: str
    stage: Stage = Stage.FULL
    ordinal: int | None = None

    @property
    def target_step(self) -> int | None:
        """Optimizer steps after which it is complete; None until the training has counted an epoch."""
        return self.config.train.steps

    @property
    def ranks_per_node(self) -> int:
        """Its processes on each node."""
        return self.config.ranks()

    @property
    def world_size(self) -> int:
        """Its processes."""
        return self.config.world_size()

    @property
    def global_batch(self) -> int | None:
        """Samples of an optimizer step; None if the command manages its batches."""
        return self.config.train.global_batch

    @property
    def micro_batch(self) -> int | None:
        """The micro-batch of its first attempt; None if it is searched for, or the command manages its batches."""
        return self.config.train.fixed_micro_batch

    @property
    def accumulation(self) -> int | None:
        """The passes of an optimizer step, likewise."""
        if self.global_batch is None or self.micro_batch is None:
            return None
        shares = self.config.train.data_parallel(self.world_size)
        return batch_size.accumulation(self.global_batch, self.micro_batch, shares)

    @property
    def stored_config(self) -> dict[str, Any]:
        """The configuration as the store keeps it."""
        return self.config.model_dump(mode="json", exclude_none=True)

    @cached_property
    def stored_text(self) -> str:
        """Its text in the store, by which thousands are compared."""
        return SharedSections().text_of(self.config)


def expand(spec: Spec, local_gpus: int = 0, check_options: CheckOptions | None = None) -> tuple[Run, ...]:
    """Return all runs of a spec, each repeat of each point of the matrix; raise InvalidSpec with the errors of all.

    Args:
        local_gpus: GPUs of this machine, which count for `executor: local`.
        check_options: Checks the options of DeepSpeed and Transformers, if all else is right.
    """
    all_points, findings = points(spec.matrix, Texts(spec).used)
    if (number := len(all_points) * spec.repeats) > spec.max_runs:
        message, hint = f"expands to {number} runs, {spec.max_runs} allowed", f"write max_runs: {number} if you mean it"
        raise InvalidSpec([*findings, Finding((("matrix",), ("repeats",)), message, hint)])
    reported = {place for finding in findings for place in finding.places}
    base = base_of(spec)
    runs: dict[str, Run] = {}
    sections = SharedSections()
    hashes: dict[str, str] = {}
    repeated: list[Finding] = []
    configs: dict[tuple[object, ...], tuple[RunConfig, Origins, list[Repeat]]] = {}
    for point in counted("points read", all_points):
        try:
            fields = tuple((s.path, repr(s.value), s.place) for s in point.settings if s.path)
            if fields not in configs:
                origins: Origins = {}
                config = config_of(base, point, local_gpus, sections, origins)
                repeats = [Repeat(config, number, local_gpus) for number in range(spec.repeats)]
                configs[fields] = config, origins, repeats
            config, _, repeats = configs[fields]
            for repeat in repeats:
                run = repeat.run(point, Stage.FULL, others=runs)
                if other := hashes.get(run.config_hash):
                    places = tuple(setting.place for setting in point.settings) or (("matrix",),)
                    hint = "remove it, or use repeats for the same point with other seeds"
                    repeated.append(Finding(places, f"is the same experiment as run {other}", hint))
                    break
                runs[run.name], hashes[run.config_hash] = run, run.name
        except InvalidSpec as error:
            new = (finding for finding in error.findings if finding not in findings)
            findings += [finding for finding in new if not concerns(finding, reported)]
    if not findings and not any(spec.baseline.items() <= run.params.items() for run in runs.values()):
        hint = "name axes of the matrix, each with one of its values"
        findings.append(Finding((("baseline",),), "is not a point of the matrix", hint))
    findings += [f for f in repeated if not concerns(f, reported)][:_REPEATED]
    with_options = [
        (c, origins) for c, origins, _ in configs.values() if c.deepspeed or isinstance(c.train.model, dict)
    ]
    if check_options and with_options and not findings:  # options that DeepSpeed or Transformers know
        pairs = zip(with_options, check_options([config for config, _ in with_options]), strict=True)
        placed = (_at_origin(finding, origins) for (_, origins), own in pairs for finding in own)
        findings = list(dict.fromkeys(placed))
    if findings:
        raise InvalidSpec(findings)
    return tuple(runs.values())


def base_of(spec: Spec, **how: Any) -> dict[str, Any]:
    """Return the configuration that all runs of a spec share; `how` as of pydantic's `model_dump`."""
    return spec.model_dump(exclude_unset=True, exclude=set(_CAMPAIGN_FIELDS), **how)


def config_of(
    base: Mapping[str, Any], point: Point, local_gpus: int, sections: SharedSections, origins: Origins
) -> RunConfig:
    """Return the configuration of a point; InvalidSpec if it has errors."""
    data, findings = dict(base), list[Finding]()
    for setting in point.settings:
        if setting.path and not _assign(data, setting.path, setting.value):
            *parent, field = setting.path
            findings.append(Finding((setting.place,), f"{'.'.join(parent)} is not a mapping, so it has no {field}"))
        elif setting.path:
            origins[setting.path] = setting.place
    data, contradictions = _canonical(data, origins)
    try:
        config = sections.read(data)
        violations = check(config, config.world_size(local_gpus), local_gpus)
    except InvalidSpec as error:
        violations = [*error.findings]
    if findings := [*findings, *contradictions, *violations]:
        raise InvalidSpec([_at_origin(finding, origins) for finding in findings])
    return config


def _canonical(data: Mapping[str, Any], origins: Origins) -> tuple[dict[str, Any], list[Finding]]:
    """Replace a strategy by its fields, of which `origins` gets the place; values that contradict it are findings.

    An unknown name stays, for the check of the field.
    """
    train, findings = data.get("train", {}), list[Finding]()
    if not isinstance(train, dict):
        return dict(data), findings
    train = dict(train)
    fields = STRATEGIES.get(name) if isinstance(name := train.get("strategy"), str) else None
    if fields is not None:
        place: FieldPath = ("train", "strategy")
        for field, value in fields.items():
            if train.get(field, value) != value:
                message = f"{name} means {field} {value}, but train.{field} is {train[field]}"
                findings.append(Finding((place, ("train", field)), message, f"remove strategy or {field}"))
        del train["strategy"]
        origins.update({("train", field): _origin(place, origins) for field in fields if field not in train})
        train.update(fields)
    if train.get("offload") != "nvme":  # the base may name a disk for some points; the digests of others ignore it
        train.pop("nvme_path", None)
    return {**data, "train": train}, findings


def _origin(place: FieldPath, origins: Origins) -> FieldPath:
    """Return the place of the value that set a field, or the field's own."""
    lengths = (n for n in range(len(place), 0, -1) if place[:n] in origins)
    return next(((*origins[place[:n]], *place[n:]) for n in lengths), place)


class Repeat:
    """A repeat of a configuration, at points that differ in parameters of the command: they share this."""

    def __init__(self, config: RunConfig, repeat: int, local_gpus: int) -> None:
        train = config.train.model_copy(update={"seed": config.train.seed + repeat}) if repeat else config.train
        self._repeat, ranks = repeat, config.ranks(local_gpus)
        # Defaults are left out, so that a field of a later version changes no hash. Time limits, retries and
        # checkpoints do not count. Nodes and ranks do: a checkpoint fits one number of them.
        self._experiment = {
            "train": train.model_dump(mode="json", exclude_defaults=True, exclude=set(DESCRIBES_ONLY)),
            "launcher": config.launcher,
            "python": config.python,
            "image": config.container and config.container.image,
            "deepspeed": config.deepspeed,
            "nodes": config.nodes,
            "ranks_per_node": ranks,
        }
        if train.global_batch is not None and train.micro_batch is None:
            shares = train.data_parallel(config.nodes * ranks)
            micro_batch = batch_size.default_micro_batch(train.global_batch, shares)
            train = train.model_copy(update={"micro_batch": micro_batch})
        self._config = config.model_copy(update={"train": train, "ranks_per_node": ranks})
        self._fields, self._texts = fields_of(self._config, repeat), Texts(self._config)

    def run(self, point: Point, stage: Stage, others: Mapping[str, Run], name: str = "") -> Run:
        """Return the run of a point; without a name it is named by its values, uniquely."""
        if findings := list(self._texts.without_text(point)):
            raise InvalidSpec(findings)
        values = values_of(self._fields, point) if self._config.command is not None else {}
        filled = self._texts.filled(values)
        digest = _digest(self._experiment, filled, point)
        name = name or run_name(point.labels, f"-r{self._repeat}" if self._repeat else "", digest, others)
        if "run" in self._texts.used:
            filled = self._texts.filled(values | {"run": name})
        new = {field: value for field, value in filled.items() if value != getattr(self._config, field)}
        config = self._config.model_copy(update=new) if new else self._config
        return Run(name, point.params, self._repeat, config, digest, stage)


def _digest(experiment: Mapping[str, Any], filled: Mapping[str, Any], point: Point) -> str:
    # The machine, environment variables and a command's own parameters count if an axis sets them: they are compared.
    varied = {}
    for path, setting in ((s.path, s) for s in point.settings):
        on_machine = path and (path[0] in ("env", "container") or (path[0] == "slurm" and path[-1] in _MACHINE))
        if path is None or (setting.axis and on_machine):
            varied[".".join(path or (setting.key,))] = setting.value
    command = {name: filled.get(name) for name in ("command", "launcher_options")}
    values = {name: value for name, value in {**experiment, **command, "varied": varied}.items() if value}
    return sha256(_EXPERIMENT.encode(values).encode()).hexdigest()[:16]


def _assign(data: dict[str, Any], path: Path, value: Any) -> bool:
    """Set a field in copies of the sections around it; a whole section is merged."""
    parent = data
    for key in path[:-1]:
        inner = parent.get(key, {})
        if not isinstance(inner, dict):
            return False
        parent[key] = parent = dict(inner)
    old = parent.get(path[-1])
    if len(path) == 1 and isinstance(old, dict) and isinstance(value, dict):
        parent[path[-1]] = merged(old, value)
    else:
        parent[path[-1]] = deepcopy(value)
    return True


def _at_origin(finding: Finding, origins: Origins) -> Finding:
    subject = finding.places[0]
    places = tuple(_origin(place, origins) for place in finding.places)
    varied = (place for place in (places[:1] if finding.at_key else places) if place[0] == "matrix")
    if (place := next(varied, None)) is None:
        above = [origin for path, origin in origins.items() if path[: len(places[0])] == places[0]]
        axes = (origin[:-1] if isinstance(origin[-1], int) else origin for origin in above)
        return replace(finding, places=(*places, *axes))  # if the text has nothing of its own
    is_named = place == places[0] or str(subject[-1]) in finding.message
    message = finding.message if is_named else f"{dotted(subject)}: {finding.message}"
    value = [origin for path, origin in origins.items() if len(path) > 1 and place[: len(origin)] == origin]
    return replace(finding, places=(place, *value, *finding.places), message=message)


class SharedSections:
    """Reads thousands of similar configurations: equal sections are checked once, and are the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], SpecSection] = {}
        self._stored: dict[str, RunConfig] = {}
        self._texts: dict[tuple[int, ...], tuple[str, str, RunConfig]] = {}

    def read_stored(self, text: str) -> RunConfig:
        """Return a run's configuration from its text in the store; with another command others share the rest."""
        if parts := _around_command(text):
            head, command, tail = parts
            if (rest := head + tail) not in self._stored:
                self._stored[rest] = self.read(loads(text))
            if self._stored[rest].command:
                return self._stored[rest].model_copy(update={"command": tuple(command)})
        return self.read(loads(text))

    def text_of(self, config: RunConfig) -> str:
        """Return the text of a run's configuration in the store, likewise."""
        rest = parts_of(config)
        if not config.command or rest not in self._texts:
            text = to_json(config.model_dump(mode="json", exclude_none=True))
            if not config.command or not (parts := _around_command(text)):
                return text
            self._texts[rest] = parts[0], parts[2], config  # which keeps the ids of its parts
        head, tail, _ = self._texts[rest]
        return f"{head}{to_json(config.command)}{tail}"

    def read(self, data: Mapping[str, Any]) -> RunConfig:
        """Return a run's configuration from values as a spec or the store has them; raise InvalidSpec."""
        try:
            sections = {name: self._section(name, kind, data[name]) for name, kind in _SECTIONS.items() if name in data}
        except ValidationError:
            sections = {}  # the whole has all errors, with their places
        return RunConfig.read({**data, **sections})

    def _section(self, name: str, kind: type[SpecSection], value: Any) -> Any:
        if type(value) is not dict:
            return value
        key = name, repr(value)  # by their text: 1, 1.0 and true are equal, and not the same
        result = self._known.get(key)
        if result is None:
            result = self._known[key] = kind.model_validate(value)
        return result


def parts_of(config: RunConfig) -> tuple[int, ...]:
    """Return the ids of all values of a configuration but its command, by which thousands are alike."""
    return tuple(map(id, (vars(config) | {"command": None}).values()))


def _around_command(text: str) -> tuple[str, list[str], str] | None:
    """Return the text before a configuration's command, the command, and the text after it."""
    head, mark, rest = text.partition(_COMMAND)
    if not mark or _COMMAND in rest:
        return None
    command, end = JSONDecoder().raw_decode(rest)
    return head + mark, command, rest[end:]
