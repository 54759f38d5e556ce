"""Every figure in the tables of the kept results, computed again from what is kept: see `kept_figures`.

A row or a column without an entry here fails, and so does an entry without a row.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, variance
from typing import Any, Final

import pytest

from .kept_figures import RESULTS, KeptRun, repeats, store

PAGE: Final = (RESULTS / "README.md").read_text()
NUMBER: Final = re.compile(r"([-+]?\d+(?:,\d{3})*(?:\.\d+)?)(k\b)?(?: × 10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?")
DIGITS: Final = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
SLACK: Final = 1.02
"""A figure in the middle of two that could be shown may be either."""

Figure = Callable[[Any, Any], Sequence[float]]
"""Return the numbers of a cell, of the row's key and of the first row's."""


@dataclass(frozen=True)
class Table:
    """The keys of a table's rows by the text in its first columns, and the figures of its others; None for text."""

    rows: Mapping[str, Any]
    figures: Sequence[Figure | None]


def each(name: str, per: float = 1.0) -> Figure:
    """Return a figure of each repeat."""
    return lambda runs, _: [getattr(run, name) / per for run in runs]


def middle(name: str, per: float = 1.0) -> Figure:
    """Return the median over repeats."""
    return lambda runs, _: [median(getattr(run, name) for run in runs) / per]


def spread(name: str) -> Figure:
    """Return the median, the least and the most."""
    return lambda runs, _: [choose(getattr(run, name) for run in runs) for choose in (median, min, max)]


def most(name: str) -> Figure:
    """Return the most over repeats."""
    return lambda runs, _: [max(getattr(run, name) for run in runs)]


def times(name: str) -> Figure:
    """Return the ratio of medians to the first row."""
    return lambda runs, first: [median(getattr(r, name) for r in runs) / median(getattr(r, name) for r in first)]


def beside(name: str) -> Figure:
    """Return the mean difference from the same repeat of the first row."""
    return lambda runs, first: [fmean(getattr(a, name) - getattr(b, name) for a, b in zip(runs, first, strict=True))]


def kept(folder: str, names: Mapping[str, str], figures: Sequence[Figure | None]) -> Table:
    """Return the table of a campaign, whose rows are the repeats of these conditions."""
    return Table({text: repeats(f"{folder}/campaign.db.gz", name) for text, name in names.items()}, figures)


BESIDE_SPEED: Final = [middle("busy_pct"), most("held_gb"), most("host_gb"), middle("held_out")]
COMPILED: Final = {
    f"{stage} {text}": f"deepcompile-{value}_zero_stage-{stage}"
    for stage in (1, 2, 3)
    for text, value in (("no", "false"), ("yes", "true"))
}
"""Conditions with and without DeepCompile by the first columns of their rows."""


STRATEGIES: Final = {
    "ddp": "strategy-ddp",
    "ZeRO 1": "strategy-zero1",
    "ZeRO 2": "strategy-zero2",
    "ZeRO 3": "strategy-zero3",
    "ZeRO 2, optimizer offloaded": "strategy-zero2-offload",
    "ZeRO 3, optimizer offloaded": "strategy-zero3-offload",
}
SHORTLY: Final = {"DDP": "ddp", "ZeRO 2, offload": "zero2-offload", "ZeRO 3, offload": "zero3-offload"}
BLOCKS: Final = "five-strategies-blocks-h100/campaign.db.gz"
LLAMA: Final = "zero3-llama-8b-h200x4"


def _searched(run: KeptRun, kind: str) -> list[dict[str, Any]]:
    query = "SELECT data FROM event WHERE run_id = ? AND kind = ? ORDER BY id"
    found = store(run.path).execute(query, (run.row["id"], f"script.micro_batch_{kind}"))
    return [json.loads(data) for (data,) in found]


def _welch(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratio of geometric means and its 95 % interval, by Welch's t."""
    logs = [[math.log(value) for value in side] for side in (above, below)]
    parts = [variance(side) / len(side) for side in logs]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    centre, reach = fmean(logs[0]) - fmean(logs[1]), _student(freedom) * math.sqrt(sum(parts))
    return [math.exp(centre + sign * reach) for sign in (0, -1, 1)]


def _paired(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the geometric mean of the ratios of pairs and its 95 % interval, by Student's t."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=True)]
    centre, reach = fmean(logs), _student(len(logs) - 1) * math.sqrt(variance(logs) / len(logs))
    return [math.exp(centre + sign * reach) for sign in (0, -1, 1)]


def _student(freedom: float) -> float:
    """Return the value that Student's t exceeds with a probability of 2.5 %, by adding up its density from 0."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    value, below, width = 0.0, 0.5, 1e-3
    while below < 0.975:
        below += scale * (1 + (value + width / 2) ** 2 / freedom) ** (-(freedom + 1) / 2) * width
        value += width
    return value


def _patches(names: Mapping[str, str]) -> dict[str, Any]:
    both = ("zero_stage-{}_deepspeed_patches-true", "zero_stage-{}_deepspeed_patches-false")
    return {
        text: [repeats(f"patches-h200/{name}.db.gz", one.format(name[1])) for one in both]
        for text, name in names.items()
    }


def _script(*files: str) -> list[list[dict[str, Any]]]:
    return [json.loads((RESULTS / file).read_text())["runs"] for file in files]


def _ms(files: Sequence[str], names: Sequence[str | None]) -> list[list[float]]:
    return [
        [run["step_ms"] for run in runs if run["row"] == name]
        for runs, name in zip(_script(*files), names, strict=True)
    ]


def _trained(work: str, variant: str, file: str = "train-h100-zero.json") -> dict[str, Any]:
    found = json.loads((RESULTS / file).read_text())
    return next(one for one in found if (one["work"], one["variant"]) == (work, variant))


def _loop(place: int, figure: Callable[[dict[str, Any]], Sequence[float]]) -> Figure:
    return lambda variant, _: figure(_trained(f"mb8x1024-zero{place}", variant))


def _steps_of(one: dict[str, Any]) -> list[float]:
    return [run["step_ms_median"] for run in one["runs"]]


def _autotuned(stage: str, _first: object = None) -> list[Any]:
    text = (
        (RESULTS / "autotuner-h200/autotuner.txt").read_text().split(f"ZeRO {stage}: exit")[1].split("ZeRO 3: exit")[0]
    )
    sizes = re.findall(r"tmbspg(\d+) .*?(out of memory|\[).*?(?:'throughput': ([\d.]+)|None)", text)
    failed = sorted(float(size) for size, end, _ in sizes if end == "out of memory")
    speed, best = max((float(speed), float(size)) for size, _, speed in sizes if speed)
    return [float(text.split("limit ")[1].split()[0]), float(len(sizes) + 1), failed, best, 1024 * speed]


def _pair(one: KeptRun, other: KeptRun, first: int = 0, last: int = 10**9) -> list[list[float]]:
    """Return the steps of both, those equal from the first on, and the largest differences, as the page's columns."""
    both = [{s["step"]: s for s in run.steps if first < s["step"] <= last} for run in (one, other)]
    shared = sorted(both[0].keys() & both[1].keys())
    apart = [abs(both[0][step]["loss"] - both[1][step]["loss"]) for step in shared]
    pairs = [(both[0][step]["eval_loss"], both[1][step]["eval_loss"]) for step in shared]
    held_out = [abs(a - b) for a, b in pairs if a is not None and b is not None]
    equal = next((place for place, value in enumerate(apart) if value), len(apart))
    counted = [float(len(held_out))] if len(held_out) > 1 else []
    return [[len(shared)], [equal], [max(apart)], [max(held_out), *counted] if held_out else []]


def _graphs(place: str, name: str) -> list[list[float]]:
    path = f"cuda-graphs-h100/{place}.db.gz"
    return _pair(KeptRun(path, name), KeptRun(path, f"{name}-graphs"))


def _killed(first: int, last: int) -> list[list[float]]:
    whole = KeptRun("cuda-graphs-h100/resumed.db.gz", "zero1-graphs")
    return _pair(whole, KeptRun("cuda-graphs-h100/killed.db.gz", "zero1-graphs-killed"), first, last)


def _twice() -> list[list[float]]:
    runs = [KeptRun("cuda-graphs-h100/resumed.db.gz", f"zero1-graphs{suffix}") for suffix in ("", "-killed")]
    return _pair(runs[0], runs[1])


def _resumed(path: str) -> list[list[float]]:
    whole, killed = (KeptRun(f"resume-h100/{path}.db.gz", f"case-{name}") for name in ("whole", "killed"))
    lines = [{s["step"]: s["loss"] for s in run.steps} for run in (whole, killed)]
    apart = {step: abs(lines[0][step] - lines[1][step]) for step in lines[0].keys() & lines[1].keys()}
    parts = [[value for step, value in apart.items() if (step > 40) is after] for after in (False, True)]
    held_out = [run.held_out for run in (whole, killed) if run.row["state"] == "completed"]
    return [[max(parts[0])], [max(parts[1])], held_out]


def _column(place: int) -> Figure:
    return lambda row, _: row[place] if isinstance(row[place], Sequence) else [row[place]]


def _learned(name: str, _first: object) -> list[float]:
    runs = [KeptRun(f"parallelism-h100x2/{one}.db.gz", one) for one in (name, "zero1")]
    apart = [abs(a - b) for a, b in zip(runs[0].losses, runs[1].losses, strict=True)]
    return [max(apart[:3]), fmean(apart), max(apart), runs[0].held_out, runs[0].held_gb]


def _late(name: str) -> Figure:
    def figure(runs: list[KeptRun], _: object) -> list[float]:
        late = [run.late_steps_ms for run in runs]
        middles = [median(one) for one in late]
        return [*middles, min(late[0]), max(late[0])] if name == "range" else middles

    return figure


def _llama(path: str, name: str) -> list[KeptRun]:
    return repeats(f"{LLAMA}/{path}.db.gz", name)


TABLES: Final[Mapping[str, Callable[[], Table]]] = {
    "zero-precision-matrix-h100": lambda: kept(
        "zero-precision-matrix-h100",
        {f"{stage}, {kind}": f"zero_stage-{stage}_precision-{kind}" for kind in ("fp16", "fp32") for stage in range(4)},
        [
            spread("speed"),
            lambda runs, _: times("speed")(runs, repeats(runs[0].path, "zero_stage-0_precision-fp32")),
            middle("held_out"),
            most("held_gb"),
        ],
    ),
    "five-strategies-h100": lambda: kept(
        "five-strategies-h100",
        {
            "355M DDP": "model-gpt2-medium_strategy-ddp",
            "355M ZeRO 1": "model-gpt2-medium_strategy-zero1",
            "355M ZeRO 2": "model-gpt2-medium_strategy-zero2",
            "774M ZeRO 3": "model-gpt2-large_strategy-zero3",
            "774M ZeRO 3, optimizer offloaded": "model-gpt2-large_strategy-zero3-offload",
        },
        [each("speed"), middle("step_ms"), *BESIDE_SPEED],
    ),
    "five-strategies-next-h200x2": lambda: kept(
        "five-strategies-next-h200x2",
        {
            "355M DDP": "medium-ddp",
            "355M ZeRO 1": "medium-zero1",
            "355M ZeRO 2": "medium-zero2",
            "774M ZeRO 3": "large-zero3",
            "774M ZeRO 3, optimizer offloaded": "large-zero3-offload",
            "1.56B ZeRO 3": "xl-zero3",
            "1.56B ZeRO 3, activations computed again": "xl-zero3-recomputed",
        },
        [spread("speed"), middle("step_ms"), middle("mfu"), *BESIDE_SPEED],
    ),
    "zero3-prefetch-h200x2": lambda: kept(
        "zero3-prefetch-h200x2",
        {"50 million, the default": "chosen", "nothing": "no-prefetch", "500 million": "prefetch-500M"},
        [each("speed"), middle("step_ms"), middle("busy_pct"), most("held_gb")],
    ),
    LLAMA: lambda: Table(
        {
            "first ZeRO 1, compiled": (_llama("before", "zero1-compile"), ""),
            "ZeRO 3, compiled as a whole": (_llama("before", "zero3-compile"), ""),
            "and a block fetched ahead": (_llama("before", "zero3-compile-prefetch"), ""),
            "second ZeRO 3, block by block": (_llama("after", "zero3-compile"), ""),
            "third ZeRO 3, block by block": (_llama("ways", "zero3-compile"), "range"),
            "and weights kept until the backward pass": (_llama("ways", "zero3-compile-reuse"), "range"),
            "FSDP2, compiled": (_llama("ways", "fsdp2-compile"), "range"),
            "fourth ZeRO 3, gradients with less work for the host: the trainer now, three repeats": (
                _llama("now", "zero3-compile"),
                "",
            ),
        },
        [
            lambda row, _: _late(row[1])(row[0], None),
            lambda row, _: [max(run.allocated_gb for run in row[0])],
            lambda row, _: row[0][0].losses[:3],
            lambda row, _: [run.held_out for run in row[0]],
        ],
    ),
    "zero3-host-llama-h200x4": lambda: Table(
        {
            "DeepSpeed's path without what decides nothing": ("spared", None),
            "and weights of a gather put in order by one copy": ("joined", "joined"),
            "and gradients put in order by one copy, no waits for reductions (eager; row `reduced` at 84aa487)": (
                None,
                "reduced",
            ),
            "without the row before, a block gathered ahead": ("ahead", None),
            "and compiled": ("compiled", None),
            "compiled, with all of the rows before": (None, "compiled"),
        },
        [
            lambda row, _, place=place: _ms(  # type: ignore[misc]
                ("zero3-host-llama-h200x4-before.json", "zero3-host-llama-h200x4.json"), row
            )[place]
            for place in (0, 1)
        ],
    ),
    "train-h100-zero": lambda: Table(
        {
            "the built-in trainer": "ours",
            "plain loop, beside each": "plain_compile",
            "Hugging Face Trainer": "hf_trainer",
            "tutorial": "tutorial",
        },
        [
            _loop(stage, figure)
            for stage in (2, 3)
            for figure in (_steps_of, lambda one: [8192e3 / median(_steps_of(one))], lambda one: [one["peak_mem_gb"]])
        ],
    ),
    "engines-h200": lambda: Table(
        {
            "plain FSDP2 loop": "bare",
            "the trainer's FSDP2": "each",
            **{f"ZeRO {stage}": f"zero{stage}" for stage in (2, 3)},
            **{f"ZeRO {stage}, DeepSpeed as installed": f"installed-zero{stage}" for stage in (2, 3)},
        },
        [
            lambda row, _, file=file: _ms([file], [row])[0]  # type: ignore[misc]
            for file in (
                "engines-h200x2-llama-3b.json",
                "engines-h200x2-llama-3b-again.json",
                "engines-h200-gpt2-gpu0.json",
                "engines-h200-gpt2-gpu1.json",
            )
        ],
    ),
    "train-zero-blocks": lambda: Table(
        {
            "plain loop, beside ZeRO 2 and beside ZeRO 3": ("plain_compile", (2, 3)),
            **{f"the built-in trainer, ZeRO {stage}": ("ours", (stage,)) for stage in (2, 3)},
            **{f"Hugging Face Trainer, ZeRO {stage}": ("hf_trainer", (stage,)) for stage in (2, 3)},
        },
        [
            lambda row, _, file=file: [  # type: ignore[misc]
                ms for stage in row[1] for ms in _steps_of(_trained(f"mb8x1024-zero{stage}", row[0], file))
            ]
            for file in ("train-h100-zero-blocks.json", "train-h200-zero.json")
        ],
    ),
    "zero3-host-h100": lambda: Table(
        {
            "ZeRO 2": ("zero2", None),
            "ZeRO 3, each module gathered by itself: DeepSpeed's default": ("modules", None),
            "whole blocks, a block ahead, and less work for the host": ("ahead", "ahead"),
            "and gradients put in order, kept and measured in one call each, no waits for them: the trainer": (
                "reduced",
                "reduced",
            ),
            "and compiled: the trainer with `compile`": ("compiled", "compiled"),
        },
        [
            lambda row, _, place=place: _ms(("zero3-host-h100.json", "zero3-host-llama-h100x4.json"), row)[place]  # type: ignore[misc]
            for place in (0, 1)
        ],
    ),
    "zero-and-offload-h200x2": lambda: kept(
        "zero-and-offload-h200x2",
        {
            text: f"model-gpt2_shape-16x1024_strategy-{name}"
            for text, name in {
                **{f"ZeRO {stage}": f"zero{stage}" for stage in range(4)},
                "ZeRO 3, optimizer offloaded": "zero3-offload",
            }.items()
        },
        [each("speed"), middle("step_ms"), times("speed"), *BESIDE_SPEED],
    ),
    "loss-verification-h200x2": lambda: kept(
        "loss-verification-h200x2",
        COMPILED,
        [each("speed"), middle("step_ms"), times("speed"), most("held_gb"), middle("held_out")],
    ),
    "loss-verification-h200": lambda: kept(
        "loss-verification-h200",
        COMPILED,
        [each("speed"), middle("step_ms"), times("speed"), most("held_gb"), each("held_out")],
    ),
    "gpu-telemetry-h100x2": lambda: Table(
        {
            text: [run]
            for text, run in zip(
                ("first", "second", "third"),
                repeats("gpu-telemetry-h100x2/campaign.db.gz", "precision-fp16"),
                strict=True,
            )
        },
        [
            each("speed"),
            lambda runs, _: [runs[0].sampled("power_w")],
            lambda runs, _: [max(one["power_w"] for one in runs[0].samples)],
            lambda runs, _: [max(one["power_avg_w"] for one in runs[0].samples)],
            lambda runs, _: [max(one["temperature_c"] for one in runs[0].samples)],
            each("energy_kj"),
            each("mj_per_token"),
        ],
    ),
    "auto-micro-batch-h200": lambda: kept(
        "auto-micro-batch-h200",
        STRATEGIES,
        [
            lambda runs, _: [_searched(runs[0], "search")[0]["seconds"]],
            lambda runs, _: [one["step_s"] for one in _searched(runs[0], "trial")],
            lambda runs, _: [_searched(runs[0], "search")[0]["micro_batch"]],
            each("step_ms", 1e3),
            each("speed"),
            most("held_gb"),
        ],
    ),
    "zero3-leaf-h200": lambda: kept(
        "zero3-leaf-h200",
        {
            "ZeRO 2": "zero2",
            "ZeRO 3": "zero3",
            "ZeRO 3, leaf": "zero3-leaf",
            "ZeRO 3, compile": "zero3-compile",
            "ZeRO 3, leaf, compile": "zero3-leaf-compile",
        },
        [each("speed"), middle("step_ms"), middle("busy_pct"), most("held_gb")],
    ),
    "screened-strategies-h200": lambda: Table(
        {
            text: [
                repeats("screened-strategies-h200/campaign.db.gz", f"strategy-{name}{suffix}")
                for suffix in ("-screen", "")
            ]
            for text in ("ZeRO 1", "ZeRO 2", "ZeRO 3", "ZeRO 3, offload", "ZeRO 2, offload", "DDP")
            for name in [SHORTLY.get(text) or text.lower().replace(" ", "")]
        },
        [
            lambda row, _: [row[0][0].attempts[-1]["micro_batch"]],
            lambda row, _: [row[0][0].step_ms],
            lambda row, _: [row[0][0].speed],
            lambda row, _: [row[0][0].held_gb],
            lambda row, _: [len(row[1]), *(run.speed for run in row[1])] if row[1] else [],
        ],
    ),
    "zero3-or-fsdp2-h200": lambda: kept(
        "zero3-or-fsdp2-h200",
        {
            "ZeRO 3": "zero3",
            "FSDP2": "fsdp2",
            "ZeRO 3, compiled": "zero3-compiled",
            "FSDP2, compiled": "fsdp2-compiled",
            "ZeRO 3, all in host memory": "zero3-offload-full",
            "FSDP2, all in host memory": "fsdp2-offload",
        },
        [spread("speed"), most("held_gb"), most("left_gb"), beside("held_out")],
    ),
    "zero3-or-fsdp2-h100": lambda: kept(
        "zero3-or-fsdp2-h100",
        {
            "ZeRO 3": "zero3",
            "FSDP2": "fsdp2",
            "ZeRO 3, compiled": "zero3-compiled",
            "FSDP2, compiled": "fsdp2-compiled",
        },
        [each("speed"), most("held_gb")],
    ),
    "patches-h200": lambda: Table(
        _patches(
            {
                "GPT-2 124M, 2 × 8 × 1,024, one GPU: ZeRO 1": "p1",
                "ZeRO 2": "p2",
                "ZeRO 3": "p3",
                "Llama of 1.2 billion parameters, 4 × 2,048 a GPU, two GPUs: ZeRO 1": "q1",
                "ZeRO 2 (2)": "q2",
                "ZeRO 3 (2)": "q3",
            }
        ),
        [
            lambda row, _: spread("speed")(row[0], None),
            lambda row, _: spread("speed")(row[1], None),
            lambda row, _: _welch([run.speed for run in row[1]], [run.speed for run in row[0]]),
            lambda row, _: [max(run.held_gb for run in runs) for runs in row],
        ],
    ),
    "five-strategies-blocks-h100": lambda: Table(
        {
            f"{size} {text}": (
                repeats(BLOCKS, f"model-gpt2-{model}_strategy-{name}"),
                first and repeats(BLOCKS, f"model-gpt2-{model}_strategy-{first}"),
            )
            for size, model, text, name, first in (
                ("355M", "medium", "DDP", "ddp", ""),
                ("355M", "medium", "ZeRO 1", "zero1", "ddp"),
                ("355M", "medium", "ZeRO 2", "zero2", "ddp"),
                ("774M", "large", "ZeRO 3", "zero3", ""),
                ("774M", "large", "ZeRO 3, optimizer offloaded", "zero3-offload", "zero3"),
            )
        },
        [
            lambda row, _: [run.speed for run in row[0]],
            lambda row, _: row[1] and _paired(*([run.speed for run in runs] for runs in row)),
            lambda row, _: row[1] and _welch(*([run.speed for run in runs] for runs in row))[1:],
            lambda row, _: [median(run.step_ms for run in row[0])],
            lambda row, _: [max(run.held_gb for run in row[0])],
            lambda row, _: [median(run.held_out for run in row[0])],
        ],
    ),
    "fp8-h200": lambda: kept(
        "fp8-h200",
        {
            f"{text}, {precision}": f"strategy-{name}_precision-{precision}"
            for text, name in (("DDP", "ddp"), ("ZeRO 2", "zero2"), ("FSDP2", "fsdp2"))
            for precision in ("bf16", "fp8")
        },
        [each("speed"), middle("step_ms"), middle("mfu"), most("held_gb"), middle("held_out")],
    ),
    "versions-h100": lambda: kept(
        "versions-h100",
        {
            f"ZeRO {stage}, {at} {text}": f"zero_stage-{stage}_deepspeed_patches-{value}_python-ds-{at}"
            for stage in (1, 2)
            for at, text, value in (("0.19.5", "off", "false"), ("0.19.8", "off", "false"), ("0.19.8", "on", "true"))
        },
        [each("speed"), middle("step_ms"), most("held_gb"), middle("held_out")],
    ),
    "fsdp2-h200": lambda: Table(
        {
            "Llama, 3.0B, 2 × 2,048 tokens a rank": ("h200x2-llama-3b-p1", "bare", "each", 2),
            "the same, four passes a step, reduced after each": ("h200x2-llama-3b-p4", "bare", "each", 2),
            "the same, reduced after the last": ("h200x2-llama-3b-p4", "bare-last", "last", 2),
            "Llama, 1.1B, 4 × 2,048 tokens": ("h200-llama-1b-p1", "bare", "each", 1),
            "GPT-2 124M, 16 × 1,024 tokens": ("h200-gpt2-p1", "bare", "each", 1),
            "the same, four passes a step (the trainer: two repeats)": ("h200-gpt2-p4", "bare", "each", 1),
        },
        [
            lambda row, _: [row[3]],
            lambda row, _: [median(_ms([f"fsdp2-{row[0]}.json"], [row[1]])[0])],
            lambda row, _: [median(_ms([f"fsdp2-{row[0]}.json"], [row[2]])[0])],
            lambda row, _: [
                median(_ms([f"fsdp2-{row[0]}.json"], [row[1]])[0]) / median(_ms([f"fsdp2-{row[0]}.json"], [row[2]])[0])
            ],
        ],
    ),
    "xl-activation-checkpointing-h200": lambda: kept(
        "xl-activation-checkpointing-h200",
        {
            "ZeRO 3": "zero3",
            "ZeRO 3, activations computed again": "zero3-recomputed",
            "FSDP2": "fsdp2",
            "FSDP2, activations computed again": "fsdp2-recomputed",
        },
        [spread("speed"), most("held_gb"), beside("held_out")],
    ),
    "zero3-host-h200": lambda: Table(
        {
            "ZeRO 2": "zero2",
            "ZeRO 3, each module gathered by itself: DeepSpeed's default": "modules",
            "whole blocks gathered at once": "blocks",
            "gradients reduced out of their own tensors": "scattered",
            "DeepSpeed's path without what decides nothing: the trainer": "spared",
        },
        [
            lambda name, _: _ms(["zero3-host-h200.json"], [name])[0],
            lambda name, _: [max(run["peak_gb"] for run in _script("zero3-host-h200.json")[0] if run["row"] == name)],
        ],
    ),
    "parallelism-h100x2": lambda: Table(
        {
            "ZeRO 1": "zero1",
            "ZeRO 1, `tensor_parallel: 2`": "zero1-tensor-parallel",
            "ZeRO 1, `sequence_parallel: 2`": "zero1-sequence-parallel",
            "ZeRO 3": "zero3",
            "ZeRO 3, `sequence_parallel: 2`": "zero3-sequence-parallel",
            "FSDP2": "fsdp2",
        },
        [lambda name, first, place=place: [_learned(name, first)[place]] for place in range(5)],  # type: ignore[misc]
    ),
    "tensor-sequence-zero3-fsdp2-h100x2": lambda: kept(
        "tensor-sequence-zero3-fsdp2-h100x2",
        {
            "ZeRO 1": "zero1",
            "ZeRO 1, `tensor_parallel: 2`": "zero1-tensor-parallel",
            "ZeRO 1, `sequence_parallel: 2`": "zero1-sequence-parallel",
            "ZeRO 3": "zero3",
            "FSDP2": "fsdp2",
        },
        [
            spread("speed"),
            times("speed"),
            middle("step_ms"),
            middle("mfu"),
            middle("busy_pct"),
            most("held_gb"),
            beside("held_out"),
        ],
    ),
    "cuda-graphs-h100": lambda: Table(
        {
            "ZeRO 0, bf16 (`a`)": _graphs("a", "zero0"),
            "ZeRO 1, bf16, 4 micro-batches a step (`b`)": _graphs("b", "zero1-accumulated"),
            "ZeRO 1, fp16, 4 micro-batches a step (`c`)": _graphs("c", "zero1-fp16-accumulated"),
            "ZeRO 0, fp32, 4 micro-batches a step (`d`)": _graphs("d", "zero0-fp32-accumulated"),
            "ZeRO 2, bf16, 4 micro-batches a step (`zero2`)": _graphs("zero2", "zero2-accumulated"),
            "ZeRO 1, bf16 (`resumed`)": _graphs("resumed", "zero1"),
            "ZeRO 1, bf16, dropout 0.1 and the fused loss (`dropout`)": _graphs("dropout", "zero1-dropout"),
            "ZeRO 1, bf16: the same run with CUDA graphs twice (`resumed`)": _twice(),
            "the same killed and resumed from step 40 (`killed`): until then": _killed(0, 40),
            "after it": _killed(40, 10**9),
        },
        [_column(place) for place in range(4)],
    ),
    "autotuner-h200": lambda: Table(
        {"2": _autotuned("2"), "3": _autotuned("3")}, [_column(place) for place in range(5)]
    ),
    "resume-h100": lambda: Table(
        {"ZeRO 2, bf16": _resumed("zero2"), "ZeRO 3, fp16": _resumed("zero3-fp16")},
        [_column(place) for place in range(3)],
    ),
    "classify": lambda: Table(
        {
            "14 families of one subject each (334)": _at_first_contact(1, 14),
            "all subjects (120)": _at_first_contact(15, 15),
            "all subjects (110), for which no rule was written": _at_first_contact(16, 16),
            "all subjects (129), only the text of logs": _at_first_contact(17, 17),
            "all subjects (59), newer libraries": _at_first_contact(18, 18),
        },
        [_column(place) for place in range(3)],
    ),
}


def _at_first_contact(first: int, last: int) -> list[list[float]]:
    with (RESULTS / "first-contact.csv").open() as file:
        families = [one for one in csv.DictReader(file) if first <= int(one["order"]) <= last]
    cases, right, hard, hard_right, verdicts, good = (
        float(sum(int(one[name]) for one in families))
        for name in ("cases", "right", "hard", "hard_right", "deterministic_verdicts", "deterministic_right")
    )
    return [[right / cases], [hard_right / hard], [good, verdicts]]


def _tables() -> dict[str, list[list[str]]]:
    """Return the tables below the list of files, by the heading above each: header and rows of cells."""
    found: dict[str, list[list[str]]] = {}
    for section in PAGE.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        if lines:
            found[heading] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return found


def _numbers(cell: str) -> list[tuple[float, float]]:
    """Return each number of a cell, and half of its last digit."""
    found = []
    for text, thousand, power in NUMBER.findall(cell):
        scale = (1e3 if thousand else 1.0) * 10.0 ** int(power.translate(DIGITS) or 0)
        found.append((float(text.replace(",", "")) * scale, scale * 0.5 * 10.0 ** -len(text.partition(".")[2])))
    return found


def _wrong(heading: str, cells: list[str], figures: Sequence[Figure | None], key: Any, first: Any) -> list[str]:
    wrong = []
    for cell, figure in zip(cells, figures, strict=True):
        shown = _numbers(cell)
        if figure is None or not cell:
            continue
        known = list(figure(key, first))
        near = len(known) == len(shown) and all(
            abs(value - own) <= SLACK * half for (value, half), own in zip(shown, known, strict=True)
        )
        if not near:
            wrong.append(f"{heading}: {' | '.join(cells)}: {cell} is {', '.join(f'{one:.6g}' for one in known)}")
    return wrong


@pytest.mark.parametrize(("folder", "seeds"), [("loss-verification-h200", 2), ("loss-verification-h200x2", 1)])
def test_sentences_on_compiling_follow_from_what_is_kept(folder: str, seeds: int) -> None:
    grid = {text: repeats(f"{folder}/campaign.db.gz", name) for text, name in COMPILED.items()}
    of_seed = [[runs[seed] for runs in grid.values()] for seed in range(seeds)]
    held_out = [[run.held_out for run in runs] for runs in of_seed]
    losses = [values for runs in of_seed for values in zip(*(run.losses for run in runs), strict=True)]
    apart = [max(max(values) - min(values) for values in kind) for kind in (held_out, losses)]
    pays = [median(r.speed for r in grid[f"{s} yes"]) / median(r.speed for r in grid[f"{s} no"]) for s in (1, 2, 3)]
    around = {
        text: [run.attempts[-1]["gpu_seconds"] / run.attempts[-1]["world_size"] - run.window_s for run in runs]
        for text, runs in grid.items()
    }
    slowest = max(around.pop("3 yes"))
    others = [seconds for runs in around.values() for seconds in runs]
    busy = [median(run.busy_pct for run in grid[key]) for key in ("3 no", "1 yes")]
    page = " ".join(PAGE[PAGE.index(f"\n## {folder}\n") :].split("\n## ")[1].split())
    for sentence in (
        f"held-out losses lie at most {apart[0]:.5f} apart, their training losses at most {apart[1]:.4f}.",
        f"{pays[2]:.1f} × the speed (2.7 × there), beside {pays[0]:.1f} × and {pays[1]:.1f} × with ZeRO 1 and 2",
        f"busy for {busy[0]:.0f} % of plain ZeRO 3's steps and {busy[1]:.0f} % of ZeRO 1's with DeepCompile",
        f"A run took {min(others):.0f} to {max(others):.0f} s beside its timed steps",
        f"ZeRO 3 took {slowest:.0f} s",
        *(f"The two seeds differ by {median(a) - median(b):.4f} (held out)" for a, b in pairwise(held_out)),
    ):
        assert sentence in page


def test_figures_in_sentences_follow_from_what_is_kept() -> None:
    took = store("gpu-telemetry-h100x2/campaign.db.gz").execute("SELECT max(ended_s) - min(started_s) FROM attempt")
    assert f"All of it took {took.fetchone()[0]:.0f} s." in " ".join(PAGE.split())


def test_every_table_is_known() -> None:
    assert set(_tables()) == set(TABLES)


@pytest.mark.parametrize("heading", TABLES)
def test_every_figure_follows_from_what_is_kept(heading: str) -> None:
    table, (_header, _line, *shown) = TABLES[heading](), _tables()[heading]
    labels = len(_header) - len(table.figures)
    assert len(shown) == len(table.rows)
    wrong: list[str] = []
    first = next(iter(table.rows.values()))
    for cells, (text, key) in zip(shown, table.rows.items(), strict=True):
        assert " ".join(filter(None, cells[:labels])) == text.removesuffix(" (2)")
        wrong += _wrong(heading, cells[labels:], table.figures, key, first)
    assert not wrong, "\n".join(wrong)
