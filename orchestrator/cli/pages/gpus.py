"""The GPUs of an attempt: power, energy, use, heat, energy per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dscampaign.db.gpu_records import AttemptGpus, GpuUse, highest
from dscampaign.orchestrator.formatting import clean, figure

SHOWN_GPUS = 8
"""The power of more GPUs is shown as a range."""


def gpu_lines(used: AttemptGpus | None) -> Iterator[str]:
    """Two lines of an attempt, such as `gpus: 2 × NVIDIA H200, 94 % busy, 1,069 W (GPU0 529 W, GPU1 540 W), ...`."""
    if used is None:
        return
    yield "gpus: " + ", ".join(filter(None, (_devices(used), _busy(used), _power(used), _peak(used), _heat(used))))
    if line := ", ".join(filter(None, (_joules(used), _token(used), _held_down(used)))):
        yield f"energy: {line}"


def _devices(used: AttemptGpus) -> str:
    names = Counter(clean(gpu.name) or "GPU" for gpu in used.gpus)
    return " + ".join(f"{number} × {name}" for name, number in names.items())


def _busy(used: AttemptGpus) -> str:
    return "" if used.util_pct is None else f"{used.util_pct:.0f} % busy"


def _power(used: AttemptGpus) -> str:
    if used.power_w is None:
        return ""
    nodes = len({gpu.node_rank for gpu in used.gpus})
    each = [f"{_name(gpu, nodes)} {gpu.power_w:.0f} W" for gpu in used.gpus]
    if len(each) > SHOWN_GPUS:
        watts = [gpu.power_w or 0.0 for gpu in used.gpus]
        each = [f"{min(watts):.0f} to {max(watts):.0f} W each"]
    return f"{used.power_w:,.0f} W ({', '.join(each)})"


def _name(gpu: GpuUse, nodes: int) -> str:
    return f"{clean(gpu.node)} GPU{gpu.gpu}" if nodes > 1 else f"GPU{gpu.gpu}"


def _peak(used: AttemptGpus) -> str:
    """The highest power of a GPU: at a moment, and over a second."""
    moment, second = highest(g.power_peak_w for g in used.gpus), highest(g.power_avg_peak_w for g in used.gpus)
    over_a_second = f" ({second:.0f} W over a second)" if second is not None else ""
    return "" if moment is None else f"peak {moment:.0f} W{over_a_second}"


def _heat(used: AttemptGpus) -> str:
    hottest = highest(gpu.temperature_max_c for gpu in used.gpus)
    return "" if hottest is None else f"at most {hottest:.0f} °C"


def _joules(used: AttemptGpus) -> str:
    return "" if used.energy_j is None else f"{used.energy_j / 1e3:,.1f} kJ"


def _token(used: AttemptGpus) -> str:
    part = used.per_token
    if part is None:
        return ""
    return f"{figure(part.j_per_token, 3)} J/token over steps {part.first_step + 1:,} to {part.last_step:,}"


def _held_down(used: AttemptGpus) -> str:
    capped, slowed = highest(g.power_capped for g in used.gpus), highest(g.slowed for g in used.gpus)
    parts = [f"at its power limit {100 * capped:.0f} % of the time" if capped and capped >= 0.005 else ""]
    parts += [f"slowed down {100 * slowed:.1f} % of the time" if slowed else ""]
    return ", ".join(filter(None, parts))
