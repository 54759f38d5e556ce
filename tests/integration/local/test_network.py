"""What goes over the network: nothing, where neither model nor text is named after the hub and nothing is forwarded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.support.campaigns import TEXT

RECORDER = REPOSITORY / "tests/support/record_network"
SPEC = f"""\
name: quiet
executor: local
ranks_per_node: 2
train:
  model: {{model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 1}}
  tokenizer: bytes
  dataset: {TEXT}
  seq_len: 32
  global_batch: 4
  micro_batch: 2
  steps: 2
  precision: fp32
  eval_batches: 1
"""


def test_the_recorder_sees_a_name_and_an_address(tmp_path: Path) -> None:
    looks = "import socket\nfor h in ('name.invalid', '192.0.2.1', '127.0.0.1', socket.gethostname()):\n"
    looks += " try: socket.create_connection((h, 9), timeout=0.01)\n except OSError: pass"
    subprocess.run([sys.executable, "-P", "-c", looks], env=_environment(tmp_path), check=True)
    seen = {line.split()[-1] for line in (tmp_path / "network").read_text().splitlines()}
    assert seen == {"name.invalid", "192.0.2.1"}


@pytest.mark.nightly
@pytest.mark.training
def test_a_campaign_asks_nobody(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    commands = (
        ["validate", "spec.yaml"],
        ["plan", "spec.yaml"],
        ["doctor", "spec.yaml"],
        ["submit", "spec.yaml", "--yes", "--watch"],
        ["status", "quiet"],
        ["report", "quiet"],
        ["export", "quiet", "--format", "csv"],
    )
    for command in commands:
        done = _campaign(command, tmp_path)
        assert done.returncode == 0 or command[0] == "doctor", done.stdout + done.stderr
    record = tmp_path / "network"
    assert not record.exists(), record.read_text()


def _campaign(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "dscampaign.orchestrator.cli", *command]
    return subprocess.run(program, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)


def _environment(folder: Path) -> dict[str, str]:
    """Without the variables that would keep Hugging Face's libraries from asking."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    return kept | {
        "PYTHONPATH": str(RECORDER),
        "NETWORK_RECORD": str(folder / "network"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "DS_ACCELERATOR": "cpu",
    }
