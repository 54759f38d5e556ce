"""`metrics:` in a spec: what it may hold, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.tests.support.spec_files import load_spec

GOOD = r"{step: 'it (\d+)', loss: 'loss[=:] *([\d.eE+-]+)'}"


def read(folder: Path, metrics: str, command: str = "command: train.py") -> Spec:
    (folder / "train.py").touch()
    (folder / "spec.yaml").write_text(f"name: n\n{command}\nmetrics: {metrics}\n")
    return load_spec(folder / "spec.yaml")


def test_patterns_reach_the_attempt_and_are_no_part_of_the_experiment(tmp_path: Path) -> None:
    [run], [other] = expand(read(tmp_path, GOOD)), expand(read(tmp_path, "{}"))
    payloads = job_request.Payloads(CampaignPaths(tmp_path, "n"), store=None)
    payload = payloads.of(run, run.config, "/runs/a/g0001", generation=1, micro_batch=None, token="t", attempt_id=1)
    assert payload.metrics == {"step": r"it (\d+)", "loss": r"loss[=:] *([\d.eE+-]+)"}
    assert run.config_hash == other.config_hash


@pytest.mark.parametrize(
    ("metrics", "place", "message", "hint"),
    [
        ("{step: 'it (', loss: 'l (.)'}", "metrics.step", "is not a regular expression", r"write \("),
        (r"{step: 'it (\d+)', loss: 'loss \S+'}", "metrics.loss", "has 0 groups", "parentheses around the number"),
        (r"{step: '(it) (\d+)', loss: 'l (.)'}", "metrics.step", "has 2 groups", "(?:...)"),
        (r"{step: '(\d+)', loss: 5}", "metrics.loss", "expected a regular expression", "write {step"),
        (r"{loss: 'l (\S+)'}", "metrics", "lacks step", "write {step"),
        (r"{step: 'it (\d+)'}", "metrics", "no metric beside step", "write {step"),
        (r"{step: 'it (\d+)', ts: 'l (\S+)'}", "metrics", "cannot be the name", "eval_loss"),
        ("[loss]", "metrics", "expected a mapping", ""),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(
    tmp_path: Path, metrics: str, place: str, message: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, metrics)
    [found] = caught.value.problems
    assert (found.line, found.field) == (3, place)
    assert message in found.message
    assert hint in (found.hint or "")


def test_the_built_in_training_needs_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is for a script of your own"):
        read(tmp_path, GOOD, "train: {model: gpt2, dataset: text.txt, global_batch: 8, steps: 3}")
