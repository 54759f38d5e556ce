"""From the times of repeats to rows, ratios with their intervals, and the page that shows them. Pure."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .work import YARDSTICK, Work

Run = Mapping[str, Any]
"""One repeat of a variant: ``repeat``, and either its figures (see ``run_document``) or ``error``."""

PEAK_FLOPS = ((r"H200 NVL|H100 NVL", 835e12), (r"H200|GH200|H100.*(HBM3|SXM)", 989e12), (r"A100", 312e12))
"""Dense bf16 and fp16 operations a second by the device's name, the first that matches, from NVIDIA's data sheets."""

DRAWS = 10_000


def peak_flops(device: str) -> float | None:
    """Peak of a GPU in bf16 or fp16, in operations a second; None for one that is not known."""
    return next((peak for pattern, peak in PEAK_FLOPS if re.search(pattern, device)), None)


def mfu(work: Work, tokens_per_s: float, device: str) -> float | None:
    """Part of the GPU's peak that the model's own operations take; None without a known peak for their format."""
    peak = peak_flops(device)
    if peak is None or work.precision == "fp32":
        return None
    return tokens_per_s * work.flops_per_token / peak


def iqr(values: Sequence[float]) -> float | None:
    """Distance between the quartiles; None for fewer than two values."""
    if len(values) < 2:
        return None
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, list[float] | None]:
    """Median of the pairs' ratios, and its 95 % interval.

    The interval is a percentile bootstrap over the pairs, always with the same draws; None for fewer than two pairs.

    Args:
        pairs: at least one (numerator, denominator), measured next to each other.
    """
    ratios = [above / below for above, below in pairs]
    if len(ratios) < 2:
        return ratios[0], None
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    tail = DRAWS // 40
    return statistics.median(ratios), [medians[tail], medians[-1 - tail]]


def run_document(repeat: int, measured: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one repeat. Args: measured: the fields of ``Measured``."""
    step_ms = measured["step_ms"]
    kept = {name: measured[name] for name in ("window_ms", "peak_mem_gb", "setup_s", "loss")}
    return {"repeat": repeat, "step_ms_median": statistics.median(step_ms), "step_ms_iqr": iqr(step_ms), **kept}


def row(work: Work, variant: str, runs: Sequence[Run], device: str) -> dict[str, Any]:
    """A variant's figures on one work: medians over its repeats, and the last error if there was one."""
    good = [run for run in runs if "error" not in run]
    errors = [run["error"] for run in runs if "error" in run]
    document: dict[str, Any] = {"work": work.name, "variant": variant, "repeats": len(good)}
    document |= dict.fromkeys(("tokens_per_s", "mfu", "step_ms_median", "step_ms_iqr", "peak_mem_gb"))
    if good:
        medians = [run["step_ms_median"] for run in good]
        tokens_per_s = 1000 * work.tokens_per_step / statistics.median(medians)
        document |= {
            "tokens_per_s": tokens_per_s,
            "mfu": mfu(work, tokens_per_s, device),
            "step_ms_median": statistics.median(medians),
            "step_ms_iqr": iqr(medians),
            "peak_mem_gb": statistics.median(run["peak_mem_gb"] for run in good),
        }
    if errors:
        document["error"] = errors[-1]
    return {**document, "runs": list(runs)}


def pairs_of(above: Sequence[Run], below: Sequence[Run], figure: str) -> list[tuple[float, float]]:
    """A figure of two variants, of each repeat in which both have it."""
    other = {run["repeat"]: run[figure] for run in below if "error" not in run}
    return [(run[figure], other[run["repeat"]]) for run in above if "error" not in run and other.get(run["repeat"])]


def with_ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with its speed as a multiple of the yardstick's on the same work, from paired repeats."""
    yard = {each["work"]: each["runs"] for each in rows if each["variant"] == YARDSTICK}
    found = []
    for each in rows:
        pairs = pairs_of(yard.get(each["work"], ()), each["runs"], "step_ms_median")
        ratio, interval = paired_ratio(pairs) if pairs else (None, None)
        found.append({**each, "ratio": ratio, "ratio_interval": interval})
    return found


def overheads(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What reporting and telemetry cost, by work.

    Time of a step with them and without, both by the host's clock between two of the trainer's lines: the one figure
    that both arms have from the same source, and that leaves nothing out that happens between two steps.
    """
    runs = {(each["work"], each["variant"]): each["runs"] for each in rows}
    found = []
    for work in dict.fromkeys(each["work"] for each in rows):
        pairs = pairs_of(runs.get((work, "ours"), ()), runs.get((work, "ours_off"), ()), "window_ms")
        if not pairs:
            continue
        ratio, interval = paired_ratio(pairs)
        on_ms, off_ms = (statistics.median(arm) for arm in zip(*pairs, strict=True))
        figures = {"on_ms": on_ms, "off_ms": off_ms, "ratio": ratio, "interval": interval, "repeats": len(pairs)}
        found.append({"work": work, **figures})
    return found


def page(rows: Sequence[Mapping[str, Any]], overhead: Sequence[Mapping[str, Any]]) -> str:
    """The comparison as text."""
    names = f"{'TOKENS/S':>10} {'MFU':>7} {'STEP MS':>9} {'IQR':>7} {'GB':>6}  x {YARDSTICK}"
    lines = [f"{'WORK':18} {'VARIANT':14} {names}"]
    lines += [f"{each['work']:18} {each['variant']:14} {_figures(each)}" for each in rows]
    for each in overhead:
        times = f"{each['on_ms']:.3f} ms a step with, {each['off_ms']:.3f} ms without"
        lines.append(f"reporting and telemetry, {each['work']}: {times}, x {_ratio(each['ratio'], each['interval'])}")
    return "\n".join(lines)


def _figures(each: Mapping[str, Any]) -> str:
    if each["step_ms_median"] is None:
        return _first_line(each.get("error", "no repeat"))
    share = "" if each["mfu"] is None else f"{100 * each['mfu']:.1f} %"
    spread = "" if each["step_ms_iqr"] is None else f"{each['step_ms_iqr']:.2f}"
    speed = f"{each['tokens_per_s']:>10,.0f} {share:>7} {each['step_ms_median']:>9.2f} {spread:>7}"
    note = "  (a repeat failed)" if each.get("error") else ""
    return f"{speed} {each['peak_mem_gb']:>6.1f}  {_ratio(each['ratio'], each['ratio_interval'])}{note}"


def _ratio(ratio: float | None, interval: Sequence[float] | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:120]
