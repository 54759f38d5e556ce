"""The report's tables of figures. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from dscampaign.db.gpu_records import GpuUse
from dscampaign.orchestrator.formatting import duration, short_number, words
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison
from dscampaign.orchestrator.report.compare.difference import Comparison, figures
from dscampaign.orchestrator.report.compare.ranking import lowest_loss_sentence
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.compare.scaling import scaling_of
from dscampaign.orchestrator.report.compare.wording import deviation
from dscampaign.orchestrator.report.measure.flags import flags_of
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails

from .elements import Picture, Section, Table
from .figures import first_of_losses, pictures

HOUR_S: Final = 3600.0

_LOSS_TEXT: Final = (
    "Final is the mean over the last twentieth of the steps, reduction what it is below the first; "
    "medians over repeats."
)
_SPEED_TEXT: Final = (
    "Milliseconds of an optimizer step, without the warm-up of each attempt; tokens/s are all tokens of the window by "
    "all of its time, over all ranks. Medians over repeats, ± their standard deviation; σ, IQR and p99 are over steps. "
    "An epoch is one pass over the text, its steps alone."
)
_MFU_TEXT: Final = (
    "MFU = tokens/s of a rank × FLOP a token / peak. FLOP a token = 6 × parameters + 12 × layers × width × length: the "
    "parameters that multiply, the width of the attention (heads × head size). The peak is the GPU's data sheet's for "
    "dense bf16, whatever the precision: conditions in fp32 and tf32 are measured against the same peak, which they "
    "cannot reach."
)
_SCALING_TEXT: Final = (
    "Conditions that differ only in their number of ranks, and in the batch where it grows with them: they keep the "
    "batch, or the batch of a rank. Efficiency is the speed of a rank as a share of what it is with the fewest ranks."
)
_MEMORY_TEXT: Final = (
    "Peaks, highest of any rank and repeat: what tensors took and what PyTorch held, after the warm-up where the "
    "trainer tells it apart, and with it where that is over 2 % more; what the driver counted on the device. Host is "
    "of a node: the sum over the attempt's processes, sampled about once a second, or the peak of the job's own "
    "control group, which counts cached files too. Persistent are parameters that ZeRO 3 keeps whole on every rank, "
    "and their elements."
)
_CPU_MEMORY_TEXT: Final = (
    "These runs were on CPUs: allocated and reserved are both what the process of a rank took at most, with the "
    "program itself and its libraries."
)
_GPUS_TEXT: Final = (
    "Samples from the end of the warm-up to that of the last step, J/token too; energy and the coolest moment are of "
    "whole attempts, energy of all GPUs. Medians over repeats. Utilisation says that some kernel ran, not how well: "
    "MFU is efficiency. Power is of one GPU. Its peak is of single sampled moments, so it may miss what the peak over "
    "1 s has. CPU load is of all cores of the nodes, whoever used them."
)
_GPUS_CAPTION: Final = (
    "Power and temperature of the GPUs of a few runs over their newest attempt: those of what is recommended, the "
    "baseline, then the first others. Each of these GPUs by itself, over the whole attempt, is in the second table."
)

_SAMPLES_A_STEP: Final = 30
"""So many tell the phases of a step apart: the shortest of three takes about a tenth of it."""

Columns = Mapping[str, Callable[[BaselineComparison], str]]
"""By heading, the text of a condition's cell."""


def _text(metric: str) -> Callable[[BaselineComparison], str]:
    return lambda one: one.condition.text(metric)


def _number(metric: str) -> Callable[[BaselineComparison], str]:
    """Without the unit, which the heading or the text above the table says."""
    return lambda one: one.condition.number(metric)


def _tokens_of_a_rank(one: BaselineComparison) -> str:
    tokens, ranks = one.condition.value("tokens_per_s"), one.condition.ranks
    return short_number(tokens / ranks) if tokens is not None and ranks > 1 else ""


def _persistent(one: BaselineComparison) -> str:
    """`290 (601,600)`: parameters that ZeRO 3 keeps whole on every rank, and their elements."""
    known = [run.persistent for run in one.condition.runs if run.persistent]
    return f"{known[0][0]:,} ({known[0][1]:,})" if known else ""


_LOSS: Final[Columns] = {
    "first": _number("first_loss"),
    "final": _number("final_loss"),
    "reduction": _text("loss_reduction"),
    "best step": _number("best_loss"),
    "held out": _number("held_out"),
}
_SPEED: Final[Columns] = {
    "step ms": _number("step_s"),
    "mean": _number("step_mean_s"),
    "σ of steps": _number("step_std_s"),
    "± ms": lambda one: deviation(one.condition.estimate("step_s"), METRICS["step_s"].scale),
    "IQR of steps": _number("step_iqr_s"),
    "p99": _number("step_p99_s"),
    "tokens/s": _number("tokens_per_s"),
    "± tokens/s": lambda one: deviation(one.condition.estimate("tokens_per_s")),
    "of a rank": _tokens_of_a_rank,
    "samples/s": _text("samples_per_s"),
    "epoch": _text("epoch_s"),
    "tokens/s per GB": _text("tokens_per_s_per_gb"),
    "MFU": _text("mfu"),
    "repeats": lambda one: str(sum(run.timing is not None for run in one.condition.counted)),
    "steps timed": _text("steps_timed"),
    "window": _text("window_s"),
    "warm-up steps": _text("warm_up_steps"),
    "warm-up": _text("warm_up_s"),
}
_MEMORY: Final[Columns] = {
    "allocated": _text("mem_allocated_gb"),
    "reserved": _text("mem_reserved_gb"),
    "with warm-up": _text("mem_higher_peak_gb"),
    "at the end": _text("mem_end_gb"),
    "persistent": _persistent,
    "device": _text("mem_device_gb"),
    "usable": _text("mem_usable_gb"),
    "peak of usable": _text("mem_share"),
    "beside baseline": lambda one: "" if one.more_memory is None else f"{one.more_memory:+.0%}",
    "host": _text("mem_host_gb"),
}
_GPUS: Final[Columns] = {
    "utilisation": _text("gpu_util_pct"),
    "power": _text("gpu_power_w"),
    "peak": _text("gpu_power_peak_w"),
    "peak over 1 s": _text("gpu_power_avg_peak_w"),
    "coolest": _text("gpu_temperature_min_c"),
    "hottest": _text("gpu_temperature_c"),
    "energy kJ": _number("energy_j"),
    "J/token": _number("j_per_token"),
    "power-capped": _text("gpu_power_capped"),
    "CPU load": _text("cpu_busy_pct"),
    "samples": _text("gpu_samples"),
    "every": _text("gpu_interval_s"),
}


def _table(columns: Columns, conditions: Iterable[BaselineComparison]) -> Table:
    """A row for each condition."""
    rows = tuple((one.condition.name, *(cell(one) for cell in columns.values())) for one in conditions)
    return Table(("condition", *columns), rows, "-" + "r" * len(columns))


def losses(results: Results) -> Section:
    """Losses of each condition."""
    table = _table(_LOSS, (one for one in results.comparisons if one.condition.counted))
    best = [lowest_loss_sentence(one.workload.name, one.comparisons) for one in results.workloads]
    text = (*filter(None, best), f"{_loss_unit(results)} {_LOSS_TEXT}")
    seen = first_of_losses(results) == "loss"
    return _section("Loss", text, table, () if seen else pictures("loss", results))


def _loss_unit(results: Results) -> str:
    own = {run.own_loss for run in results.runs}
    if own == {True}:
        return "As the script reports it."
    return "In nats per token; of a `command` as its script reports it." if True in own else "In nats per token."


def speed(results: Results) -> Section:
    """How fast each condition is."""
    table = _table(_SPEED, (one for one in results.comparisons if one.condition.value("step_s") is not None))
    return _section("Speed", _SPEED_TEXT, table, pictures("step_time", results) + pictures("speed", results))


_WORK: Final = {"matrix_parameters": "parameters", "layers": "layers", "attention_width": "width"}
"""Facts of a model that its work follows from, and those of which earlier versions counted it."""


def mfu_inputs(results: Results) -> Section:
    """What MFU was calculated from: a row for each condition that has one."""
    header = (
        "condition", "device", "precision", "tokens/s of a rank", "parameters", "layers", "width", "length",
        "FLOP a token", "peak TFLOP/s", "MFU",
    )  # fmt: skip
    return _section("What MFU is calculated from", _MFU_TEXT, Table(header, tuple(_mfu_rows(results)), "---rrrrrrrr"))


def _mfu_rows(results: Results) -> Iterator[tuple[str, ...]]:
    for condition in results.conditions:
        run = next((run for run in condition.runs if run.speed), condition.runs[0])
        peak, tokens = run.speed.get("peak_flops"), condition.value("tokens_per_s")
        if isinstance(peak, int | float) and condition.value("mfu") is not None:
            yield (
                condition.name,
                str(run.speed.get("device") or run.start.get("device") or ""),
                str(condition.field("precision") or ""),
                _whole(tokens / condition.ranks) if tokens is not None else "",
                *(_whole(run.start.get(name, run.start.get(older))) for name, older in _WORK.items()),
                _whole(condition.field("seq_len")),
                _whole(run.speed.get("flops_per_token")),
                f"{peak / 1e12:,.4g}",
                condition.text("mfu"),
            )


def _whole(value: Any) -> str:
    """All digits, so that the result can be calculated again."""
    return f"{value:,.0f}" if isinstance(value, int | float) else ""


def scaling(results: Results) -> Section:
    """What more ranks bring."""
    rows = tuple(
        (
            one.condition.name,
            f"{one.ranks}",
            one.keeps,
            short_number(one.tokens_per_s),
            short_number(one.tokens_per_s / one.ranks),
            f"{one.efficiency:.0%}",
            "" if one.condition is one.reference else one.reference.name,
        )
        for one in scaling_of(results.conditions)
    )
    header = ("condition", "ranks", "keeps", "tokens/s", "of a rank", "efficiency", "beside")
    return _section("Scaling", _SCALING_TEXT, Table(header, rows, "-r-rrr-"))


def memory(results: Results) -> Section:
    """What each condition takes of memory."""
    held = ("mem_reserved_gb", "mem_allocated_gb")
    known = (one for one in results.comparisons if any(one.condition.value(name) is not None for name in held))
    text = (_MEMORY_TEXT, *((_CPU_MEMORY_TEXT,) if results.only_cpus else ()))
    return _section("Memory", text, _table(_MEMORY, known), pictures("memory", results))


def gpus(results: Results, details: GpuDetails) -> Section:
    """What the GPUs did."""
    table = _table(_GPUS, (one for one in results.comparisons if any(run.gpus.names for run in one.condition.runs)))
    header = (
        "run", "node", "GPU", "utilisation", "power", "peak", "of limit", "peak over 1 s", "coolest", "hottest",
        "memory", "energy kJ",
    )  # fmt: skip
    each = Table(header, tuple(_gpu_row(run, used, details) for run, used in details.uses), "--rrrrrrrrrr")
    shown = tuple(one for one in (table, each) if one.rows)
    texts = tuple(text for text in (_GPUS_TEXT, _phases(results)) if text and table.rows)
    return Section("GPUs", texts, shown, (Picture("gpus", _GPUS_CAPTION),))


def _phases(results: Results) -> str:
    """Why power is not divided among the phases of a step; "" if samples would tell them apart or are missing."""
    known = [(run.timing.step_s, run.gpus.interval_s) for run in results.runs if run.timing and run.gpus.interval_s]
    if not known or (slowest := max(known))[0] >= _SAMPLES_A_STEP * slowest[1]:
        return ""
    step, every = (METRICS[name].text(value) for name, value in zip(("step_s", "gpu_interval_s"), slowest, strict=True))
    return (
        f"A step takes at most {step}, and power is sampled every {every}: forward pass, backward pass and "
        "optimizer step cannot be told apart in it."
    )


def _gpu_row(run: str, used: GpuUse, details: GpuDetails) -> tuple[str, ...]:
    limits = (one.power_limit_w for one in details.devices.get(run, ()) if (one.node, one.gpu) == (used.node, used.gpu))
    limit_w = next(limits, None)
    return (
        run,
        used.node,
        str(used.gpu),
        METRICS["gpu_util_pct"].text(used.util_pct),
        METRICS["gpu_power_w"].text(used.power_w),
        METRICS["gpu_power_peak_w"].text(used.power_peak_w),
        f"{used.power_peak_w / limit_w:.0%}" if used.power_peak_w and limit_w else "",
        METRICS["gpu_power_avg_peak_w"].text(used.power_avg_peak_w),
        METRICS["gpu_temperature_min_c"].text(used.temperature_min_c),
        METRICS["gpu_temperature_c"].text(used.temperature_max_c),
        METRICS["mem_device_gb"].text(used.mem_used_max_gb),
        METRICS["energy_j"].number(used.energy_j),
    )


def quality(results: Results) -> Section:
    """How complete and clean the figures of each run are."""
    rows = tuple(_quality_row(run) for run in results.runs if run.step is not None or flags_of(run))
    header = (
        "run", "state", "steps expected", "received", "losses", "times", "memories", "gaps", "repeated", "not finite",
        "skipped", "allocator retries", "waited for data", "clocks held down", "remarks",
    )  # fmt: skip
    return _section("Data quality", (), Table(header, rows, "--rrrrrrrrrrrr-"))


def _quality_row(run: MeasuredRun) -> tuple[str, ...]:
    quality = run.quality
    counts = (quality.gaps, quality.repeated, quality.non_finite, quality.skipped_steps, quality.alloc_retries)
    return (
        run.name,
        f"{run.state} early" if run.early else str(run.state),
        f"{quality.expected:,}" if quality.expected else "",
        f"{quality.received:,}",
        *(f"{number:,}" for number in (quality.losses, quality.times, quality.memories)),
        *(f"{number:,}" if number else "" for number in counts),
        *(f"{share:.1%}" if share else "" for share in (quality.data_wait, run.gpus.slowed)),
        "; ".join(flags_of(run)),
    )


def goodput(results: Results) -> Section:
    """Where the hours of the GPUs went."""
    cost = results.cost
    if not cost.total:
        return Section("Goodput")
    parts = [("training steps that count", cost.training), ("warm-up and compiling: the first steps", cost.warm_up)]
    parts += [("starting, evaluating, saving", cost.around)]
    parts += [("searching for the micro-batch", cost.search)] if cost.search else []
    parts += [("screening", cost.screening)] if cost.screening else []
    parts += [("all of attempts whose step times are not known", cost.untimed)] if cost.untimed else []
    parts += [(f"lost to {words(kind)}", value) for kind, value in cost.lost.items()]
    rows = tuple((what, f"{value / HOUR_S:,.3f}", f"{value / cost.total:.1%}") for what, value in parts)
    unit = f"{results.hour_unit[0].upper()}{results.hour_unit[1:]}"
    text = f"{unit} of all attempts, which waited {duration(cost.queued_s)} in the queue, added up."
    return _section("Goodput", text, Table(("what", results.hour_unit, "share"), rows, "-rr"), (Picture("goodput"),))


def comparison_tables(one: Comparison) -> list[Table]:
    """Two conditions beside each other: what differs in the configuration, and the figures."""
    left, right = one.left.name, one.right.name
    if left == right:
        left, right = f"{left} (A)", f"{right} (B)"
    shown = Table(("figure", left, right), tuple(figures(one)), "-rr")
    return [Table(("configuration", left, right), one.differences), shown] if one.differences else [shown]


def _section(title: str, text: str | tuple[str, ...], table: Table, drawn: tuple[Picture, ...] = ()) -> Section:
    """Text and table only where the table has rows."""
    if not table.rows:
        return Section(title, figures=drawn)
    return Section(title, (text,) if isinstance(text, str) else text, (table,), drawn)
