"""The GPUs of an attempt: power, energy, use, temperature, energy per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dscampaign.db.gpu_records import AttemptGpus, highest
from dscampaign.orchestrator.formatting import clean, figure


def gpu_lines(used: AttemptGpus | None) -> Iterator[str]:
    """Two lines of an attempt, such as `gpus: 2 × NVIDIA H200, 94 % busy, 1,069 W, ...`."""
    if used is None:
        return
    names = Counter(clean(gpu.name) or "GPU" for gpu in used.gpus)
    parts = [" + ".join(f"{number} × {name}" for name, number in names.items())]
    parts += [f"{used.util_pct:.0f} % busy"] if used.util_pct is not None else []
    parts += [f"{used.power_w:,.0f} W"] if used.power_w is not None else []
    hottest = highest(gpu.temperature_max_c for gpu in used.gpus)
    parts += [f"at most {hottest:.0f} °C"] if hottest is not None else []
    yield "gpus: " + ", ".join(parts)
    if line := ", ".join(_energy(used)):
        yield f"energy: {line}"


def _energy(used: AttemptGpus) -> Iterator[str]:
    if used.energy_j is not None:
        yield f"{used.energy_j / 1e3:,.1f} kJ"
    if part := used.per_token:
        yield f"{figure(part.j_per_token, 3)} J/token over steps {part.first_step + 1:,} to {part.last_step:,}"
    capped, slowed = highest(gpu.power_capped for gpu in used.gpus), highest(gpu.slowed for gpu in used.gpus)
    if capped and capped >= 0.005:
        yield f"at its power limit {100 * capped:.0f} % of the time"
    if slowed:
        yield f"slowed down {100 * slowed:.1f} % of the time"
