"""The report's tables of what GPUs did. Pure."""

from __future__ import annotations

from typing import Final

from ....db.gpu_records import GpuUse
from ...views.text import figure
from ..compare.results import Results
from ..compare.wording import gigabytes, kilojoules, part, value
from ..measure.failures import Background
from ..measure.metrics import highest, median
from .elements import Picture, Section, Table

_GPUS_TEXT: Final = (
    "Samples from the end of the warm-up to that of the last step; energy is of whole attempts and of all GPUs. "
    "Utilisation says that some kernel ran, not how well: MFU is efficiency. Power is of one GPU. Its peak is of "
    "single sampled moments, so it may miss what the peak over 1 s has."
)
_GPUS_CAPTION: Final = (
    "Power and temperature of the GPUs of a few runs over their newest attempt: those of what is recommended, the "
    "baseline, then the first others. Each of these GPUs by itself, over the whole attempt, is in the second table."
)
_EACH_GPU: Final = (
    "run", "node", "GPU", "utilisation", "power", "peak", "peak over 1 s", "hottest", "memory", "energy kJ",
)  # fmt: skip


def gpus(results: Results, background: Background) -> Section:
    """What the GPUs did."""
    rows = tuple(
        (
            condition.name,
            value(median(condition, "gpu_util_pct"), " %", 3),
            value(median(condition, "gpu_power_w"), " W", 3),
            value(median(condition, "gpu_power_peak_w"), " W", 3),
            value(median(condition, "gpu_power_avg_peak_w"), " W", 3),
            value(median(condition, "gpu_temperature_c"), " °C", 3),
            kilojoules(median(condition, "energy_j")),
            value(median(condition, "j_per_token")),
            part(highest(condition, "gpu_power_capped")),
            value(median(condition, "gpu_samples")),
            value(median(condition, "gpu_interval_s"), " s", 2),
        )
        for condition in results.conditions
        if any(run.gpus.names for run in condition.runs)
    )
    header = (
        "condition", "utilisation", "power", "peak", "peak over 1 s", "hottest", "energy kJ", "J/token",
        "power-capped", "samples", "every",
    )  # fmt: skip
    tables = [Table(header, rows, "-rrrrrrrrrr")] if rows else []
    if each := tuple(_gpu_row(run, used) for run, used in background.gpus):
        tables.append(Table(_EACH_GPU, each, "--rrrrrrrr"))
    return Section("GPUs", (_GPUS_TEXT,) if rows else (), tuple(tables), (Picture("gpus", _GPUS_CAPTION),))


def _gpu_row(run: str, used: GpuUse) -> tuple[str, ...]:
    return (
        run,
        used.node,
        str(used.gpu),
        _number(used.util_pct, " %"),
        _number(used.power_w, " W"),
        _number(used.power_peak_w, " W"),
        _number(used.power_avg_peak_w, " W"),
        _number(used.temperature_max_c, " °C"),
        gigabytes(used.mem_used_max_gb),
        _number(used.energy_j / 1e3 if used.energy_j is not None else None),
    )


def _number(found: float | None, unit: str = "") -> str:
    return "" if found is None else figure(found, 3) + unit
