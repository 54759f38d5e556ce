"""Checkpoints of all kinds as folders of Transformers, with the loss on held-out text that the run reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dscampaign.jobs.shared.model_shapes import BYTES
from dscampaign.jobs.trainer import tokens, transformers_folder
from dscampaign.jobs.trainer.config import Job
from dscampaign.jobs.trainer.data import load
from dscampaign.jobs.trainer.flat_parameters import FlatModel
from dscampaign.jobs.trainer.fused_loss import IGNORED_TARGET
from dscampaign.jobs.trainer.model import NextTokenLoss
from dscampaign.jobs.trainer.sampling import evaluation_batches
from dscampaign.jobs.trainer.transformers_folder import WeightsRequest, main, write
from dscampaign.tests.integration.trainer.attempts import LLAMA, TINY, Attempt, train_config

pytestmark = pytest.mark.training

HALF: dict[str, Any] = {"precision": "bf16", "steps": 2, "checkpoint_every": 2}
KINDS: dict[str, dict[str, Any]] = {
    "zero-0": {**HALF, "zero_stage": 0},
    "zero-1": HALF,
    "zero-3": {**HALF, "zero_stage": 3},
    "blocks": {**HALF, "zero_stage": 3, "compile": True},
    "offload": {**HALF, "zero_stage": 3, "offload": "full", "model": LLAMA},
    "fp32": {**HALF, "precision": "fp32", "zero_stage": 3},
    "fsdp2": {**HALF, "zero_stage": 0, "engine": "fsdp2"},
    "ddp": {**HALF, "precision": "fp32", "zero_stage": 0, "engine": "ddp"},
}
CLOSE = {"fp32": 1e-6, "bf16": 2e-4}
"""Nats between two evaluations of the same weights: kernels for bf16 round by where a tensor lies in memory."""


@pytest.fixture(scope="module")
def attempts(train_many: Callable[..., dict[str, Attempt]]) -> dict[str, Attempt]:
    return train_many(**KINDS)


def request(attempt: Attempt, folder: Path, dtype: str, **changes: Any) -> WeightsRequest:
    (saved,) = attempt.checkpoints.iterdir()
    folder.mkdir(exist_ok=True)
    train = {**json.loads((attempt.dir / "train.json").read_text()), **changes}
    return WeightsRequest(str(saved), train, str(folder), dtype)


def written(attempt: Attempt, folder: Path, dtype: str, **changes: Any) -> Path:
    write(request(attempt, folder, dtype, **changes))
    return folder


def test_the_program_answers_in_its_last_line(
    attempts: dict[str, Attempt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`campaign weights` starts it."""
    asked = json.dumps(asdict(request(attempts["ddp"], tmp_path, "fp32")))
    monkeypatch.setattr("sys.stdin", StringIO(asked))
    main()
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["model"], answer["tokenizer"]) == ("GPT2LMHeadModel", "bytes")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.num_parameters() == answer["parameters"]


def held_out_loss(folder: Path, kind: str, data_dir: Path) -> float:
    config, alone = train_config(**KINDS[kind]), cast(Job, SimpleNamespace(rank=0, world_size=1))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    loss, sums = NextTokenLoss(model, model.config.vocab_size), torch.zeros(2, dtype=torch.float64)
    held_out = load(config, data_dir, prepare=True).held_out
    with torch.no_grad():
        for inputs, targets in evaluation_batches(held_out, config, alone, torch.device("cpu")):
            count = (targets != IGNORED_TARGET).sum().double()
            sums += torch.stack([loss(inputs, targets).double() * count, count])
    return float(sums[0] / sums[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_on_held_out_text_is_the_run_s(
    kind: str, attempts: dict[str, Attempt], data_dir: Path, tmp_path: Path
) -> None:
    folder = written(attempts[kind], tmp_path, KINDS[kind]["precision"])
    reported = attempts[kind].values("eval_loss")[2]
    assert held_out_loss(folder, kind, data_dir) == pytest.approx(reported, abs=CLOSE[KINDS[kind]["precision"]])
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}


@pytest.mark.parametrize("kind", ["zero-0", "zero-1", "zero-3"])
def test_fp32_of_a_training_in_half_precision_is_what_its_optimizer_keeps(
    kind: str, attempts: dict[str, Attempt], tmp_path: Path
) -> None:
    half, full = (load_file(written(attempts[kind], tmp_path / d, d) / "model.safetensors") for d in ("bf16", "fp32"))
    assert half.keys() == full.keys()
    assert all(torch.equal(full[name].bfloat16(), half[name]) for name in half)
    assert any(not torch.equal(full[name], half[name].float()) for name in half)


def test_parameters_that_lie_joined_are_parted() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    whole = {name: parameter.detach().clone() for name, parameter in inner.named_parameters()}
    flat = FlatModel(inner, torch.device("cpu"))
    state = {"module": flat.state_dict(), "buffer_names": []}
    parted = transformers_folder._parted({"matrices": flat.matrices.detach(), "vectors": flat.vectors.detach()}, state)
    assert parted.keys() == whole.keys()
    assert all(torch.equal(parted[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("model", "said"),
    [({"n_embd": 64}, "in the checkpoint"), ({"n_layer": 3}, "has no weight"), ({"n_layer": 1}, "has a weight")],
)
def test_a_checkpoint_of_another_model_is_refused(
    model: dict[str, Any], said: str, attempts: dict[str, Attempt], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        written(attempts["zero-3"], tmp_path, "bf16", model={**TINY["model"], **model})


def test_bytes_become_a_tokenizer_with_the_same_ids(tmp_path: Path) -> None:
    tokens.save_tokenizer(BYTES, tmp_path)
    loaded, own, text = AutoTokenizer.from_pretrained(tmp_path), tokens.ByteTokenizer(), "Hé\n \t<|x|> 你好 it's"
    assert loaded(text)["input_ids"] == own.encode([text])[0]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.eos_token_id, len(loaded)) == (own.eos, own.vocab_size)
