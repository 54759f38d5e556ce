"""A real search for the micro-batch, on CPUs whose ranks have a limit of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main

SPEC = """\
name: auto
executor: local
dir: {dir}
local: {{mem_per_process: 3100M}}
ranks_per_node: 1
repeats: 2
deepspeed: {{zero_optimization: {{reduce_bucket_size: 1000000, allgather_bucket_size: 1000000}}}}
train:
  model: {{model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 1, vocab_size: 50304}}
  tokenizer: bytes
  dataset: {{path: {text}}}
  seq_len: 512
  global_batch: 8
  micro_batch: auto
  steps: 1
  eval_batches: 1
  precision: bf16
  zero_stage: 1
"""


@pytest.mark.nightly
@pytest.mark.training
def test_memory_that_runs_out_in_the_search_costs_no_attempt(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 4000)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(dir=tmp_path / "campaigns", text=text))
    assert main(["submit", str(spec), "--yes", "--watch"]) == 0
    store = Store.open(f"sqlite:///{tmp_path}/campaigns/campaign.db")
    with store.read() as conn:
        campaign = queries.campaign_by_name(conn, "auto")
        assert campaign
        first, second = (queries.attempts(conn, campaign.id, run.id) for run in queries.runs(conn, campaign.id))
        events = [(event.run_id, event.kind, event.data) for event in queries.events(conn, campaign.id)]
    store.close()
    (searched,) = [data for _, kind, data in events if kind == "script.micro_batch_search"]
    (known,) = [run_id for run_id, kind, _ in events if kind == "script.micro_batch_known"]
    assert (len(first), len(second)) == (1, 1)
    assert searched["did_not_fit"] == 8
    assert first[0].micro_batch == second[0].micro_batch == searched["micro_batch"] == 4
    assert [(attempt.micro_batch, attempt.accumulation) for attempt in (*first, *second)] == [(4, 2), (4, 2)]
    assert known == second[0].run_id
