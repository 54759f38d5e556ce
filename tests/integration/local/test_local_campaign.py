"""Training without Slurm and without a server: processes of this machine and SQLite.

That a run that does not fit learns the same in smaller pieces is proven in tests/integration/slurm/test_main_job.py.
"""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support import LIGHT, REPOSITORY, SCRIPTS
from dscampaign.tests.support.campaigns import TEXT, Observed, open_store, run_to_end, submit

pytestmark = pytest.mark.training

CHECKPOINT_EVERY = 2
STEPS = 24
SLOW = SCRIPTS / "slow.py"

SPEC = f"""\
name: local
executor: local
python: PYTHON
ranks_per_node: 1
retry: {{backoff_s: 0}}
train:
  model: {{model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 1, vocab_size: 50304}}
  tokenizer: bytes
  dataset: {TEXT}
  seq_len: 64
  global_batch: 8
  micro_batch: 4
  steps: {STEPS}
  zero_stage: 3
  precision: fp32
  checkpoint_every: {CHECKPOINT_EVERY}
  eval_batches: 1
matrix: {{case: [{{label: killed}}]}}
"""


class Killer:
    """Kills the agent of one run, once, when it has something to lose: its ranks must end, and a successor resume."""

    def __init__(self) -> None:
        self._done = False

    def __call__(self, seen: Observed) -> None:
        attempts = seen.attempts["case-killed"]
        if not self._done and attempts and (attempts[-1].last_step or 0) >= CHECKPOINT_EVERY + 1:
            os.kill(int((attempts[-1].job_id or "").rpartition("-")[2]), signal.SIGKILL)
            self._done = True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def done(folder: Path) -> Iterator[Observed]:
    """The campaign after it has settled, all processes of which record the network connections that they make."""
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.replace("PYTHON", str(stand_in(folder))))
    store = open_store(f"sqlite:///{folder}/campaign.db")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("HF_", "TRANSFORMERS_"))]:
            patch.delenv(name)  # they would keep the libraries of Hugging Face from asking
        patch.setenv("PYTHONPATH", f"{REPOSITORY}/tests/support/record_network{os.pathsep}{LIGHT}")
        patch.setenv("NETWORK_RECORD", str(folder / "network"))
        settled = run_to_end(store, submit(spec, folder, store), each_pass=Killer())
    yield settled
    store.close()


def test_every_step_is_in_the_store_exactly_once(done: Observed) -> None:
    assert done.states() == {"case-killed": RunState.COMPLETED}
    assert done.steps("case-killed") == list(range(1, STEPS + 1))


def test_a_run_whose_agent_was_killed_resumes_from_its_checkpoint(done: Observed) -> None:
    first, last = done.attempts["case-killed"]
    reached, resumed = first.last_step or 0, last.start_step or 0
    assert first.state == "failed"
    assert CHECKPOINT_EVERY <= resumed <= reached < STEPS
    assert reached - resumed <= CHECKPOINT_EVERY


def test_steps_leave_no_warnings_in_the_logs(done: Observed, folder: Path) -> None:
    logs = list(folder.rglob("*_rank0.log"))
    assert len(logs) == len(done.attempts["case-killed"])
    assert not any("FutureWarning" in log.read_text() for log in logs)


@pytest.mark.nightly
def test_the_weights_of_a_run_are_written_for_transformers(
    done: Observed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "model"
    capsys.readouterr()
    assert main(["weights", "case-killed", str(out), "--store", done.store.url_without_password]) == 0
    printed = capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(out)
    assert f"GPT2LMHeadModel, {model.num_parameters():,} parameters in fp32" in printed
    assert f"step {STEPS:,}, held-out loss {done.metrics('case-killed')[-1].eval_loss:.4f}" in printed


def test_training_asks_nobody(done: Observed, folder: Path) -> None:
    """test_network.py shows that the recorder sees what is asked, and that the commands ask nobody either."""
    assert not (folder / "network").exists(), (folder / "network").read_text()


def test_a_grown_matrix_keeps_what_ran_and_adds_what_is_new(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    first = run_to_end(store, submit(_grown(tmp_path, "[a]"), tmp_path, store))
    done = run_to_end(store, submit(_grown(tmp_path, "[b, a]"), tmp_path, store))
    assert done.states() == {"DEPTH-b": RunState.COMPLETED, "DEPTH-a": RunState.COMPLETED}
    assert done.attempts["DEPTH-a"] == first.attempts["DEPTH-a"]
    store.close()


def _grown(folder: Path, values: str) -> Path:
    spec = folder / "spec.yaml"
    spec.write_text(
        textwrap.dedent(f"""\
        name: grown
        executor: local
        python: {stand_in(folder)}
        command: ["{SLOW}", "2", "0.1", "5"]
        train: {{steps: 2}}
        matrix:
          env.DEPTH: {values}
        """)
    )
    return spec
