"""Runs that differ only in their seed are repeats of a condition. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from dscampaign.db.states import UNSETTLED_RUN
from dscampaign.orchestrator.campaign.titles import Candidate, matching, titles_of, unambiguous
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.report.measure.metrics import METRICS, OverRepeats
from dscampaign.orchestrator.report.measure.run import MeasuredRun

from .reasons import Reason, Why
from .statistics import LEAST_REPEATS, Estimate, estimate

ALIKE: Final = 0.02
"""Tokens per step so far apart are the same: a script's own follow from speeds and times that it has rounded."""

LEAST_LOSSES: Final = 5
"""Different losses of a run: fewer may be equal by chance, like those of a script that prints two digits."""

LIBRARIES: Final = ("deepspeed", "torch", "transformers", "accelerate")
"""Software whose versions may name a condition."""

_DEVICES: Final = ("partition", "constraint", "nodelist", "reservation", "gres", "gpus_per_node", "gpus_per_run")
"""Of Slurm: what decides on which devices a job trains."""


@dataclass(frozen=True, eq=False)
class Condition:
    """A point of the matrix with its repeats, in order; named after the first, without the repeat's number.

    Attributes:
        title: its name for people, made of the axes that differ in the campaign.
    """

    name: str
    params: Mapping[str, Any]
    runs: tuple[MeasuredRun, ...] = field(repr=False)
    title: str

    @cached_property
    def counted(self) -> tuple[MeasuredRun, ...]:
        """Repeats that may be compared: completed, and as the spec asks for them."""
        return tuple(run for run in self.runs if run.counts)

    @cached_property
    def learned(self) -> tuple[MeasuredRun, ...]:
        """Counted repeats with different losses: repeats with equal losses at every step count once."""
        return tuple({losses_of(run) or run.repeat: run for run in reversed(self.counted)}.values())[::-1]

    @property
    def says_tokens(self) -> bool:
        """Whether every counted repeat with a known speed reports tokens."""
        return all(run.timing.tokens_per_s for run in self.counted if run.timing and run.timing.step_s > 0)

    def speeds(self, *, in_tokens: bool) -> list[tuple[int, float]]:
        """Return repeat and tokens per second, or else steps per second, of each counted repeat that reports them."""
        timings = [(run.repeat, run.timing) for run in self.counted if run.timing]
        if in_tokens:
            return [(repeat, timing.tokens_per_s) for repeat, timing in timings if timing.tokens_per_s]
        # The window's steps by its time; by the median if times are between lines, which may hold other work.
        times = [(repeat, timing.step_s if timing.by_clock else timing.mean_s) for repeat, timing in timings]
        return [(repeat, 1.0 / step_s) for repeat, step_s in times if step_s > 0]

    @property
    def own_loss(self) -> bool:
        """Whether the user's script reports the loss of any run, in an unknown unit."""
        return any(run.own_loss for run in self.runs)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The kinds of devices of its counted repeats, if known; several if repeats differ."""
        return tuple(dict.fromkeys(" and ".join(sorted(run.device_names)) for run in self.counted if run.device_names))

    @cached_property
    def neighbours(self) -> float:
        """How many other runs trained beside its counted repeats at a time, on average."""
        return sum(run.neighbours for run in self.counted) / max(1, len(self.counted))

    @cached_property
    def software(self) -> dict[str, str]:
        """The versions of its software, as far as known; several if repeats differ."""
        return _software(self.runs)

    @property
    def ranks(self) -> int:
        """How many processes train, or would."""
        return self.runs[0].world_size

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens per step of its runs; None if they differ or are unknown. A script's own come from rounded speeds."""
        sizes = [run.tokens_per_step for run in self.runs if run.tokens_per_step]
        alike = sizes and max(sizes) <= (1.0 + ALIKE) * min(sizes)
        return round(statistics.median(sizes)) if alike else None

    def summary(self, metric: str) -> Estimate | float | None:
        """Return a metric over the repeats, combined by the registry's rule; None if unknown."""
        of, over = METRICS[metric].of, METRICS[metric].over
        runs = {OverRepeats.HIGHEST: self.runs, OverRepeats.LOSS: self.learned}.get(over, self.counted)
        values = [value for run in runs if (value := of(run)) is not None]
        if over is OverRepeats.LOSS and not all(map(math.isfinite, values)):
            return Estimate(math.nan, None, None, None, len(values))
        if over in (OverRepeats.LOSS, OverRepeats.MEDIAN):
            return estimate(values)
        return None if not values else max(values) if over is OverRepeats.HIGHEST else sum(values)

    def value(self, metric: str) -> float | None:
        """A metric over the repeats as a number; of a median without its interval."""
        summary = self.summary(metric)
        return summary.value if isinstance(summary, Estimate) else summary

    def text(self, metric: str) -> str:
        """Return a metric over the repeats with its unit; empty if unknown."""
        own = self.own_loss and METRICS[metric].unit == "nats"
        return self.number(metric) if own else METRICS[metric].text(self.value(metric))

    def number(self, metric: str) -> str:
        """Return a metric over the repeats without its unit; empty if unknown."""
        return METRICS[metric].number(self.value(metric))

    def field(self, name: str) -> Any:
        """Return a field of the trainer's configuration; None for a user's script."""
        return self.runs[0].train.get(name)


def losses_of(run: MeasuredRun) -> tuple[tuple[float, float], ...]:
    """Return steps and losses of a run; none if they are too few to be equal only for equal runs."""
    both = zip(run.curve.step, run.curve.raw, strict=True)
    finite = tuple((step, loss) for step, loss in both if math.isfinite(loss))
    return finite if len({loss for _, loss in finite}) >= LEAST_LOSSES else ()


def key_of(value: Any) -> str:
    """Return the same text for equal values, in any order of their fields."""
    return json.dumps(value, sort_keys=True, default=str)


def unlike(one: Condition, other: Condition) -> bool:
    """Whether devices, neighbours or inherited variables, which the spec does not decide, may explain other speeds."""
    return next(circumstances(one, [other]), None) is not None


def circumstances(first: Condition, others: Iterable[Condition]) -> Iterator[Reason]:
    """Yield a reason for each circumstance in which these differ from the first by chance."""
    compared = list(others)
    if devices := [one for one in compared if _unlike_devices(first, one)]:
        kinds = dict.fromkeys(f"{one.title}: {' or '.join(one.devices)}" for one in (first, *devices))
        yield Reason(Why.DEVICES, detail=some(list(kinds), 4))
    variables = {one.title: differ for one in compared if (differ := _unlike_variables(first, one))}
    if names := sorted({name for several in variables.values() for name in several}):
        yield Reason(Why.VARIABLES, tuple(dict.fromkeys([first.title, *variables])), detail=some(names, 4))
    if beside := [one for one in compared if abs(first.neighbours - one.neighbours) >= 0.5]:
        numbers = some([f"{one.title}: {one.neighbours:.1f}" for one in (first, *beside)], 4)
        yield Reason(Why.NEIGHBOURS, detail=numbers)


def _unlike_variables(one: Condition, other: Condition) -> set[str]:
    """Return the names of inherited variables that differ and that no spec sets; different set-ups may."""
    environments = [each for condition in (one, other) for run in condition.counted for each in run.variables]
    if not environments:
        return set()
    configs = [each.runs[0].config for each in (one, other)]
    set_ups = [[(config.get(place) or {}).get("setup") or [] for place in ("slurm", "local")] for config in configs]
    if set_ups[0] != set_ups[1]:
        return set()
    own = {name for config in configs for name in config.get("env") or ()}
    names = {name for each in environments for name in each} - own
    return {name for name in names if len({each.get(name) for each in environments}) > 1}


def _unlike_devices(one: Condition, other: Condition) -> bool:
    """Whether they trained on devices that differ by chance: among repeats, or between jobs that asked for the same."""
    several = len(one.devices) > 1 or len(other.devices) > 1
    if several or len({*one.devices, *other.devices}) < 2:
        return several
    asked = [[each.runs[0].slurm.get(name) for name in _DEVICES] for each in (one, other)]
    return asked[0] == asked[1]


def is_unfinished(condition: Condition) -> bool:
    """Return whether a repeat is still to come or under way."""
    return any(run.state in UNSETTLED_RUN for run in condition.runs)


def few_repeats(conditions: Iterable[Condition], *, losses: bool) -> Reason | None:
    """Return the reason that conditions have too few repeats for an interval; None if they have enough.

    Args:
        losses: of their losses; else of their speeds.
    """
    few = [one for one in conditions if len(one.learned if losses else one.counted) < LEAST_REPEATS]
    if not few:
        return None
    if identical := [one.title for one in few if len(one.counted) >= LEAST_REPEATS]:
        return Reason(Why.IDENTICAL, tuple(identical))
    if lacking := {one.title: len(one.runs) for one in few if len(one.runs) < LEAST_REPEATS}:
        least = min(lacking.values())
        return Reason(Why.FEW_RUNS, tuple(lacking), least, unit=" run" if least == 1 else " runs")
    return uncounted(few)


def uncounted(conditions: Iterable[Condition]) -> Reason | None:
    """Return the reason that repeats of conditions do not count; None if all do."""
    lacking = [one for one in conditions if len(one.counted) < len(one.runs)]
    if waiting := [one.title for one in lacking if is_unfinished(one)]:
        return Reason(Why.PROVISIONAL, tuple(waiting))
    details = [f"{len(one.counted)} of {count(len(one.runs), 'repeat')}" for one in lacking[:1]]
    return Reason(Why.FEW_COUNT, tuple(one.title for one in lacking), detail=details[0]) if details else None


def conditions_of(runs: Sequence[MeasuredRun], *, whole: bool = False) -> list[Condition]:
    """Return the conditions of a campaign in the order of the matrix; with `whole`, titles have all parameters."""
    by_params = [sorted(group, key=lambda run: run.repeat) for group in alike(runs, lambda run: key_of(run.params))]
    groups = {
        first.name.removesuffix(f"-r{first.repeat}" if first.repeat else ""): (first, *others)
        for first, *others in by_params
    }
    titles = _titles(groups, whole=whole)
    return [Condition(name, repeats[0].params, repeats, titles[name]) for name, repeats in groups.items()]


def _titles(groups: Mapping[str, Sequence[MeasuredRun]], *, whole: bool) -> dict[str, str]:
    """Return the title of each condition: versions that differ stand in place of the paths of environments."""
    reported = {name: _software(runs) for name, runs in groups.items()}
    places = {name: key_of({**runs[0].config, "train": None}) for name, runs in groups.items()}
    known: dict[str, dict[str, str]] = {}
    for name, own in reported.items():  # a run that ends before it reports versions has those of its environment
        known.setdefault(places[name], {}).update(own)
    software = {name: {**known[places[name]], **own} for name, own in reported.items()}
    differing = [name for name in LIBRARIES if len({own[name] for own in software.values() if name in own}) > 1]
    params = {
        name: {**runs[0].params, **{each: software[name][each] for each in differing if each in software[name]}}
        for name, runs in groups.items()
    }
    by_path = ("python", "container.image")
    plain = {name: {axis: own[axis] for axis in own if axis not in by_path} for name, own in params.items()}
    return titles_of(plain if len(set(map(key_of, plain.values()))) == len(plain) else params, whole=whole)


def _software(runs: Iterable[MeasuredRun]) -> dict[str, str]:
    by_library: dict[str, dict[str, None]] = {}
    for name, version in (item for run in runs for item in run.software.items()):
        by_library.setdefault(name, {})[version] = None
    return {name: "/".join(versions) for name, versions in by_library.items()}


def find_condition(word: str, conditions: Sequence[Condition]) -> tuple[Condition, str] | None:
    """Return the condition of this name, see `matching`, and its name or that of a repeat; None if there is none.

    Raises UserError for several.
    """
    repeats = {f"{one.name}-r{run.repeat}": one for one in conditions for run in one.runs}
    by_name = repeats | {one.name: one for one in conditions}
    if word in by_name:
        return by_name[word], word
    found = matching(word, [Candidate(one.name, one.title) for one in conditions])
    found = found or matching(word, [Candidate(name, one.title) for name, one in repeats.items()])
    found = unambiguous(word, found, several=False)
    return (by_name[found[0].name], found[0].name) if found else None


def condition_named(word: str, conditions: Sequence[Condition], campaign: str) -> Condition:
    """Return the condition of this name, or of this repeat; raises UserError for none or several."""
    if found := find_condition(word, conditions):
        return found[0]
    raise UserError(f"no condition named {word} in {campaign}", f"one of: {some([one.name for one in conditions], 8)}")


def baseline_of(
    conditions: Sequence[Condition], name: str | None = None, of_spec: Mapping[str, Any] | None = None
) -> tuple[Condition, str]:
    """Return the condition with this name, else the default; and the reason.

    The default is the first condition with the parameters `of_spec` by the spec, else the first that trains without
    DeepSpeed's engine, else the first of the matrix, among conditions with a run that counts, finite losses, and no
    repeat that failed or was changed by a retry, as far as there are any. There must be at least one condition.
    """
    for each in conditions:
        if name == each.name:
            return each, "named by --baseline"
    ready = [each for each in conditions if each.counted] or list(conditions)
    losses = {each: [loss or 0.0 for r in each.counted for loss in (r.loss.final, r.loss.held_out)] for each in ready}
    ready = [each for each in ready if all(map(math.isfinite, losses[each]))] or ready
    ready = [each for each in ready if all(run.counts or run.state in UNSETTLED_RUN for run in each.runs)] or ready
    matching = [each for each in conditions if of_spec and of_spec.items() <= each.params.items()]
    if chosen := next((each for each in ready if each in matching), None):
        return chosen, "named in the spec"
    plain = next((each for each in ready if each.field("engine") == "ddp"), None)
    chosen, reason = (plain, "the first without DeepSpeed's engine") if plain else (ready[0], "the first")
    if matching:
        return chosen, f"{reason} that ran as configured; {matching[0].title} of the spec did not"
    return chosen, reason if plain or chosen is conditions[0] else f"{reason} that ran as configured"
