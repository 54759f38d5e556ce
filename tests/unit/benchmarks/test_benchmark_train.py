"""The comparison of training speeds: its arithmetic, the specs of ours, a tiny one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.benchmarks.train import ours, table
from dscampaign.benchmarks.train.work import (
    GPT2,
    GPT2_LARGE,
    GPT2_MEDIUM,
    OURS,
    WORKS,
    Request,
    scaled,
)
from dscampaign.db.records import METRIC_COLUMNS, MetricRow
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.tests.support import REPOSITORY

pytestmark = pytest.mark.nightly

SCRIPT = REPOSITORY / "benchmarks/train"
H100 = "NVIDIA H100 80GB HBM3"


def good(repeat: int, step_ms: float, window_ms: float | None = None) -> dict[str, Any]:
    """One repeat's figures."""
    return {
        "repeat": repeat,
        "step_ms_median": step_ms,
        "step_ms_iqr": 0.1,
        "window_ms": window_ms or step_ms,
        "peak_mem_gb": 5.0,
        "setup_s": 9.0,
        "loss": 8.0,
    }


def bad(repeat: int) -> dict[str, Any]:
    return {"repeat": repeat, "error": "OutOfMemoryError: too much\nmore lines"}


def request(folder: Path, **changed: Any) -> Request:
    plain = Request(
        work=scaled(WORKS["mb8x1024"], "tiny"),
        variant="ours",
        device="cpu",
        steps=10,
        warmup=5,
        compile=True,
        tokens="tokens.bin",
        dtype="uint16",
        text="/data/text.txt",
        tokenizer="bytes",
        folder=str(folder),
        started_s=100.0,
    )
    return replace(plain, **changed)


# -- arithmetic ------------------------------------------------------------------------------------------------


def test_parameters_are_those_of_the_published_models() -> None:
    assert GPT2.parameters == 124_439_808
    assert GPT2_MEDIUM.parameters == 354_823_168
    assert GPT2_LARGE.parameters == 774_030_080
    assert GPT2.padded_vocab == 50304


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        (H100, 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 PCIe", None),
        ("cpu", None),
    ],
)
def test_peak_of_a_device(device: str, peak: float | None) -> None:
    assert table.peak_flops(device) == peak


def test_mfu_counts_weights_without_padding_and_attention() -> None:
    # 6 x 124,439,808 + 12 x 12 x 768 x 1024 = 859,885,056 operations a token
    assert table.mfu(WORKS["mb8x1024"], 417_000, H100) == pytest.approx(417_000 * 859_885_056 / 989e12)
    assert table.mfu(WORKS["mb8x1024"], 417_000, H100) == pytest.approx(0.3626, abs=1e-4)
    assert table.mfu(WORKS["mb8x1024"], 417_000, "cpu") is None


def test_iqr() -> None:
    assert table.iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
    assert table.iqr([1.0]) is None


def test_a_ratio_of_pairs_leaves_out_what_both_have_in_common() -> None:
    ratio, interval = table.paired_ratio([(10.1, 10.0), (20.2, 20.0), (40.4, 40.0)])
    assert ratio == pytest.approx(1.01)
    assert interval == pytest.approx([1.01, 1.01])
    ratio, interval = table.paired_ratio([(1.0, 1.0), (1.1, 1.0), (1.2, 1.0), (1.3, 1.0), (1.4, 1.0)])
    assert ratio == pytest.approx(1.2)
    assert interval == pytest.approx([1.0, 1.4])
    assert table.paired_ratio([(3.0, 2.0)]) == (1.5, None)


def test_a_row_is_the_median_of_its_repeats() -> None:
    found = table.row(WORKS["mb8x1024"], "ours", [good(0, 20.0), good(1, 30.0), good(2, 16.0)], H100)
    assert (found["step_ms_median"], found["step_ms_iqr"], found["repeats"]) == (20.0, 7.0, 3)
    assert found["tokens_per_s"] == 8 * 1024 / 0.020
    assert "error" not in found


def test_errors_are_told_and_leave_the_other_repeats_alone() -> None:
    some = table.row(WORKS["mb8x1024"], "ours", [good(0, 20.0), bad(1)], H100)
    assert (some["step_ms_median"], some["repeats"]) == (20.0, 1)
    none = table.row(WORKS["mb8x1024"], "tutorial", [bad(0)], H100)
    assert (none["tokens_per_s"], none["repeats"]) == (None, 0)
    assert none["error"].startswith("OutOfMemoryError")
    page = table.page(table.with_ratios([some, none]), [])
    assert "(a repeat failed)" in page
    assert "OutOfMemoryError: too much" in page


def test_ratios_are_of_repeats_next_to_each_other() -> None:
    work = WORKS["mb8x1024"]
    plain = table.row(work, "plain_compile", [good(0, 20.0), good(1, 40.0), bad(2)], H100)
    slow = table.row(work, "tutorial", [good(0, 40.0), good(1, 80.0), good(2, 1.0)], H100)
    found = {each["variant"]: each for each in table.with_ratios([plain, slow])}
    assert (found["plain_compile"]["ratio"], found["tutorial"]["ratio"]) == (1.0, 0.5)
    assert found["tutorial"]["ratio_interval"] == [0.5, 0.5]


def test_overhead_is_of_the_windows() -> None:
    work = WORKS["mb8x1024"]
    on = table.row(work, "ours", [good(0, 1.0, 20.2), good(1, 1.0, 40.4)], H100)
    off = table.row(work, "ours_off", [good(0, 1.0, 20.0), good(1, 1.0, 40.0), bad(2)], H100)
    (found,) = table.overheads([on, off])
    assert found["ratio"] == pytest.approx(1.01)
    assert (found["on_ms"], found["off_ms"], found["repeats"]) == (pytest.approx(30.3), 30.0, 2)
    assert table.overheads([on]) == []


# -- ours ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("variant", ["ours", "ours_graphs", "ours_off"])
def test_the_spec_is_one_that_the_campaign_takes(tmp_path: Path, work: str, variant: str) -> None:
    document = ours.spec(request(tmp_path, work=WORKS[work], variant=variant))
    spec = Spec.model_validate(document)
    assert spec.train.micro_batch == spec.train.global_batch == WORKS[work].micro_batch
    assert spec.train.log_every == (5 if variant == "ours_off" else 1)
    assert spec.train.cuda_graphs == (variant == "ours_graphs")
    assert spec.train.compile
    assert OURS.keys() == WORKS.keys()


def test_figures_of_the_store_are_those_of_the_window(tmp_path: Path) -> None:
    def line(step: int) -> MetricRow:
        known = {"ts_s": 200 + 0.25 * step, "loss": 9.0 - step / 10, "step_time_s": 30.0 if step <= 5 else 0.2}
        figures: dict[str, float | None] = {**dict.fromkeys(METRIC_COLUMNS.values()), **known, "mem_allocated_gb": 4.0}
        return MetricRow(attempt_id=1, generation=1, step=step, **figures)  # type: ignore[arg-type]

    rows = [line(step) for step in range(1, 16)]
    found = ours.figures(request(tmp_path), rows)
    assert found.step_ms == pytest.approx([200.0] * 10)
    assert [found.window_ms, found.setup_s, found.loss] == pytest.approx([250.0, 101.25, 7.5])
    with pytest.raises(RuntimeError, match="ends"):
        ours.figures(request(tmp_path), rows[:-1])


# -- the whole -------------------------------------------------------------------------------------------------


@pytest.mark.training
def test_a_tiny_comparison_runs_the_plain_loop(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    flags = ["--model-scale", "tiny", "--no-compile", "--variants", "plain_compile", "--steps", "3", "--warmup", "1"]
    command = [sys.executable, str(SCRIPT), *flags, "--out", str(out), "--work", str(tmp_path / "work")]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(out.read_text())
    assert found["repeats"] == 1, found
    assert (found["device"], found["mfu"], found["ratio"]) == ("cpu", None, 1.0)
    assert 5.0 < found["runs"][0]["loss"] < 7.0  # ln 500 is 6.2
    assert "plain_compile" in done.stdout
