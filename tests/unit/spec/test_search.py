"""The section `search`: what it accepts, and what it says of the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dscampaign.db.states import Stage
from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.load import runs_of_text
from dscampaign.orchestrator.spec.objective import HIGHER, LOWER, WORDS
from dscampaign.orchestrator.spec.sampling import Trial, TrialOutcome, best_first
from dscampaign.orchestrator.spec.search_section import SearchConfig
from dscampaign.orchestrator.spec.trials import TrialTemplate

BASE = """\
name: tuned
slurm: {gpus_per_node: 2, time: 10}
train: {model: gpt2, tokenizer: bytes, dataset: text, global_batch: 8, lr: 1e-3}
"""
LR = "lr: {log_uniform: [1e-5, 1e-2]}"


def first(folder: Path, search: str, more: str = "", base: str = BASE) -> Run:
    text = f"{base}{more}search: {search}\n"
    spec, (run,) = runs_of_text(text, folder / "spec.yaml")
    assert spec.search
    return run


def test_any_field_can_be_a_parameter(tmp_path: Path) -> None:
    more = "strategy: {choice: [zero1, zero2]}, warmup_steps: {int: [0, 9]}, slurm.cpus_per_task: {choice: [1, 2]}"
    run = first(tmp_path, f"{{parameters: {{{LR}, {more}}}}}", "", BASE.replace("lr: 1e-3", "steps: 9"))
    assert (run.name, run.stage, run.ordinal) == ("trial-0000", Stage.TRIAL, 0)
    assert set(run.params) == {"lr", "strategy", "warmup_steps", "cpus_per_task"}
    assert 1e-5 <= run.config.train.lr <= 1e-2
    assert run.config.train.lr == float(f"{run.config.train.lr:.4g}")
    assert run.config.train.zero_stage == int(str(run.params["strategy"])[-1])
    assert run.config.slurm.cpus_per_task == run.params["cpus_per_task"]


def test_choices_of_inputs_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    search = "{parameters: {train.dataset.path: {choice: ['./a.txt', '${FOLDER}/a.txt']}}}"
    run = first(tmp_path, search, base=BASE.replace("lr: 1e-3", "steps: 9"))
    assert run.params == {"path": str(tmp_path / "a.txt")}


def test_a_combination_that_cannot_be_trained_is_drawn_again(tmp_path: Path) -> None:
    search = "{parameters: {zero_stage: {choice: [0, 2]}, offload: {choice: [optimizer, full]}}, trials: 9}"
    base = BASE.replace("lr: 1e-3", "steps: 9")
    assert first(tmp_path, search, base=base).params == {"zero_stage": 2, "offload": "optimizer"}


@pytest.mark.parametrize(
    ("search", "more", "message"),
    [
        ("{parameters: {lr: {log_uniform: [0, 1]}}}", "", "lower end above 0"),
        ("{parameters: {lr: {uniform: [2, 1]}}}", "", "the lower first"),
        ("{parameters: {lr: {normal: [2, 1]}}}", "", "is no distribution"),
        ("{parameters: {lr: {min: 1, max: 2}}}", "", "is no distribution"),
        ("{parameters: {strategy: {choice: [zero1]}}}", "", "at least two values"),
        ("{parameters: {strategy: {choice: [zero1, zeroo]}}}", "", 'did you mean "zero'),
        ("{parameters: {warmup_steps: {int: [0.5, 2]}}}", "", "whole numbers"),
        ("{parameters: {lrr: {uniform: [1, 2]}}}", "", 'did you mean "lr"?'),
        ("{parameters: {weight_decay: {uniform: [-1, 1]}}}", "", "greater than or equal to 0"),
        (f"{{parameters: {{{LR}}}, objective: los}}", "", 'did you mean "loss"?'),
        (f"{{parameters: {{{LR}}}, bounds: {{memry: 1}}}}", "", 'did you mean "memory"?'),
        (f"{{parameters: {{{LR}}}, halving: {{from: 9, to: 9}}}}", "", "no second rung"),
        (f"{{parameters: {{{LR}}}, halving: {{from: 3, to: 9}}, objective: [loss, speed]}}", "", "single objective"),
        (f"{{parameters: {{{LR}}}}}", "matrix: {seq_len: [8, 16]}\n", "stands beside `search`"),
        (f"{{parameters: {{{LR}}}}}", "repeats: 3\n", "search.confirm.repeats"),
        (f"{{parameters: {{{LR}, train.steps: {{int: [1, 9]}}}}, halving: {{from: 3, to: 9}}}}", "", "search.halving"),
    ],
)
def test_errors_have_a_hint(tmp_path: Path, search: str, more: str, message: str) -> None:
    base = BASE.replace(", lr: 1e-3", "" if "halving" in search else ", steps: 9")
    with pytest.raises(SpecError) as error:
        first(tmp_path, search, more, base)
    assert message in str(error.value)


GP = """\
from dscampaign.orchestrator.spec.sampling import TrialOutcome, Trial, ask
from dscampaign.orchestrator.spec.search_section import SearchConfig

space = {"x": {"uniform": [0, 1]}, "kind": {"choice": ["a", "b"]}}
search = SearchConfig.model_validate({"parameters": space, "sampler": "gp"})
trials = []
for number in range(16):
    params = ask(search, trials, number, lambda _: True)
    fits = params["x"] < 0.8
    ended = TrialOutcome.MEASURED if fits else TrialOutcome.INFEASIBLE
    values = ((params["x"] - 0.6) ** 2 + (params["kind"] == "b"),) if fits else ()
    trials.append(Trial(number, params, ended, values, excess=float(not fits)))
assert min(trial.values[0] for trial in trials[10:] if trial.values) < 1e-3
assert ask(search, trials[:12], 12, lambda _: True) == trials[12].params
"""


@pytest.mark.nightly
def test_a_gaussian_process_finds_the_best_and_asks_again_alike() -> None:
    subprocess.run([sys.executable, "-c", GP], check=True)


@pytest.mark.parametrize(
    ("package", "sampler", "hint"),
    [("optuna", "tpe", "pip install 'dscampaign[search]'"), ("torch", "gp", "pip install torch")],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, sampler: str, hint: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else name)
    with pytest.raises(SpecError, match=f"needs {package}") as error:
        first(tmp_path, f"{{parameters: {{{LR}}}, sampler: {sampler}}}", base=BASE.replace("lr: 1e-3", "steps: 9"))
    assert hint in str(error.value)


def test_a_rung_has_the_schedule_of_a_whole_trial(tmp_path: Path) -> None:
    halving = "halving: {from: 10, to: 200, factor: 4}"
    search = SearchConfig.model_validate(
        {"parameters": {"lr": {"uniform": [0.1, 1]}}, "halving": {"from": 10, "to": 200, "factor": 4}}
    )
    assert search.halving
    assert search.halving.rungs == (10, 40, 160, 200)
    run = first(tmp_path, f"{{parameters: {{{LR}}}, {halving}}}", base=BASE.replace(", lr: 1e-3", ""))
    train = run.config.train
    assert (run.target_step, train.schedule_steps, train.checkpoint_every) == (10, 200, 200)
    template = TrialTemplate({"train": {"steps": 5}, "command": ["t.py", "{lr}"], "executor": "local"}, search, 0)
    rungs = [template.trial(3, {"lr": 0.5}, steps) for steps in (None, 40, 200)]
    assert len({rung.config_hash for rung in rungs}) == 1
    assert [rung.config.train.steps for rung in rungs] == [10, 40, 200]
    confirmations = [template.confirmation(3, {"lr": 0.5}, repeat) for repeat in (0, 1)]
    assert [run.config.train.seed for run in confirmations] == [43, 44]
    assert {run.target_step for run in confirmations} == {200}


def test_the_best_of_several_objectives_are_those_that_no_other_beats() -> None:
    search = SearchConfig.model_validate({"parameters": {"x": {"uniform": [0, 1]}}, "objective": ["loss", "speed"]})
    values = [(2.0, 10.0), (1.0, 5.0), (3.0, 9.0), (1.5, 20.0)]
    trials = [Trial(number, {}, TrialOutcome.MEASURED, pair) for number, pair in enumerate(values)]
    assert [trial.number for trial in best_first(search, trials)] == [1, 3, 0, 2]


def test_the_figures_are_those_of_the_report() -> None:
    assert METRICS.keys() | {"steps_per_s"} >= LOWER | HIGHER
    assert not LOWER & HIGHER
    assert {name for names in WORDS.values() for name in names} <= LOWER | HIGHER
