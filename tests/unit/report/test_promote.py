"""The command promote: it takes what is recommended, and only that, unless a condition is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.planted import Planted, PlantStore
from dscampaign.tests.support.spec_files import load_runs

SPEC = """\
name: sweep   # of stages
train: {model: gpt2, dataset: wikitext, seq_len: 128, global_batch: 8, micro_batch: 4, steps: 100}
slurm: {gpus_per_node: 2}
matrix: {zero_stage: [1, 2]}
repeats: 3
"""
Output = pytest.CaptureFixture[str]


@pytest.fixture
def stages(tmp_path: Path, planted_url: PlantStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plants a slow and a fast stage, so many repeats each."""
    monkeypatch.chdir(tmp_path)

    def make(repeats: int) -> str:
        times_s = (0.2,) * repeats, (0.1,) * repeats
        url = planted_url(
            *(
                Planted(
                    f"zero_stage-{stage}",
                    s,
                    (3.0,) * repeats,
                    train={"zero_stage": stage},
                    params={"zero_stage": stage},
                )
                for stage, s in zip((1, 2), times_s, strict=True)
            )
        )
        store = Store.open(url)
        with store.write() as conn:
            campaign = queries.campaign_by_name(conn, "sweep")
            assert campaign
            queries.update_campaign(conn, campaign.id, spec=SPEC, provenance={"spec": str(tmp_path / "sweep.yaml")})
            for run in queries.runs(conn, campaign.id):
                queries.update_run(conn, run.id, params={"zero_stage": run.params["zero_stage"]})
        store.close()
        return url

    return make


def test_a_recommendation_becomes_a_spec_and_overwrites_nothing(stages: Any, tmp_path: Path, capsys: Output) -> None:
    words = ["promote", "--steps", "20000", "--store", stages(3)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "one run of zero_stage-2, 20,000 steps, as the campaign sweep-20000-steps\n  train.zero_stage: 2\n" in out
    assert "campaign plan sweep-20000-steps.yaml" in err
    (run,) = load_runs(tmp_path / "sweep-20000-steps.yaml")[1]
    assert (run.config.train.zero_stage, run.config.train.steps, run.repeat) == (2, 20_000, 0)
    assert main(words) == 2
    assert "already exists" in capsys.readouterr().err


def test_what_is_not_established_has_to_be_named(stages: Any, tmp_path: Path, capsys: Output) -> None:
    words = ["promote", "--steps", "500", "--store", stages(1), "--output", "long.yaml"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "no condition is recommended" in said
    assert "--condition" in said
    assert not (tmp_path / "long.yaml").exists()
    assert main([*words, "--condition", "zero_stage-3"]) == 2
    assert "no condition named zero_stage-3" in capsys.readouterr().err
    assert main([*words, "--condition", "zero"]) == 2
    assert "zero may mean 2 runs\nhint: one of: zero_stage-1, zero_stage-2" in capsys.readouterr().err
    assert main([*words, "--condition", "ZeRO 1"]) == 0
    assert "zero_stage: 1" in (tmp_path / "long.yaml").read_text()


@pytest.mark.parametrize("word", ["ZeRO 2", "zero_stage-2", "zero_stage-2-r1", "*2"])
def test_a_baseline_is_named_as_a_run_is(stages: Any, capsys: Output, word: str) -> None:
    assert main(["recommend", "--store", stages(3), "--baseline", word]) == 0
    assert "baseline: ZeRO 2 (named by --baseline)" in capsys.readouterr().out
