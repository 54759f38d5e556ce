"""What a rank tells of its memory before its first step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

from dscampaign.jobs import report
from dscampaign.jobs.trainer import memory, probe
from dscampaign.jobs.trainer.config import Job
from dscampaign.jobs.trainer.model import NextTokenLoss
from dscampaign.jobs.trainer.probe import pass_through, report_memory, sample_cost_gb, to_come_bytes
from dscampaign.tests.integration.trainer.attempts import Attempt, train_config

pytestmark = pytest.mark.training

CPU = torch.device("cpu")


def tiny(dropout: float = 0.1) -> NextTokenLoss:
    torch.manual_seed(1)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 64}
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return NextTokenLoss(GPT2LMHeadModel(GPT2Config(**sizes, **drops)).train(), 60)


def test_the_probe_leaves_no_trace() -> None:
    model = tiny()
    noticed: list[Any] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(noticed.append)
    weights, random = [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
    pass_through(model, 2, 32, CPU)
    assert noticed == []
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, before) for p, before in zip(model.parameters(), weights, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert not model.model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize("frozen", [False, True])
def test_the_probe_goes_all_the_way_back(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    model.model.get_input_embeddings().weight.requires_grad_(not frozen)
    seen: list[tuple[int, ...]] = []
    real = torch.autograd.grad

    def spy(loss: torch.Tensor, inputs: Any) -> Any:
        gradients = real(loss, inputs)
        seen.extend(tuple(gradient.shape) for gradient in gradients)
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", spy)
    pass_through(model, 3, 32, CPU)
    assert seen == [(3, 32, 16)]


def test_the_probe_goes_through_recomputed_activations() -> None:
    model = tiny()
    model.model.gradient_checkpointing_enable({"use_reentrant": False})
    pass_through(model, 2, 32, CPU)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("room_gb", "sizes"), [(100.0, [1, 1, 4, 8]), (7.0, [1, 1, 2, 4]), (3.0, [1, 1, 2]), (2.0, [1, 1])]
)
def test_the_cost_of_a_sample_is_the_difference_of_the_largest_that_fit(room_gb: float, sizes: list[int]) -> None:
    tried: list[int] = []

    def peak_gb(samples: int) -> float:
        tried.append(samples)
        return 0.25 + 1.25 * samples

    cost_gb = sample_cost_gb(peak_gb, room_gb)
    assert tried == sizes
    assert cost_gb == (1.5 if len(sizes) == 2 else 1.25)


def engine(stage: int, **changes: Any) -> Any:
    model = torch.nn.Linear(10, 10, bias=False, dtype=torch.bfloat16)
    values = {"overlap": False, "contiguous": True, **changes}
    return SimpleNamespace(
        module=model,
        optimizer=SimpleNamespace(optimizer=torch.optim.AdamW([torch.zeros(100, requires_grad=True)])),
        zero_optimization_stage=lambda: stage,
        zero_contiguous_gradients=lambda: values["contiguous"],
        zero_overlap_comm=lambda: values["overlap"],
        zero_reduce_bucket_size=lambda: 1000,
    )


def test_what_training_adds_is_counted() -> None:
    gradients, bucket = 100 * 2, 1000 * 2
    assert to_come_bytes(engine(0)) == gradients
    assert to_come_bytes(engine(1)) == gradients + bucket
    assert to_come_bytes(engine(1, overlap=True)) == gradients + 2 * bucket
    assert to_come_bytes(engine(1, contiguous=False)) == gradients
    assert to_come_bytes(engine(2)) == bucket  # its optimizer's states are on the host, and so are its gradients


class Gpu:
    """A device that calls itself a GPU, whose figures the test gives."""

    type = "cuda"


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What one rank on a GPU of 9 GB reports of its memory, and in which collectives it took part."""
    seen: list[Any] = []
    real = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda data, **_: real(data))
    monkeypatch.setattr(dist, "all_reduce", lambda _tensor, how: seen.append(how))
    monkeypatch.setattr(report, "event", lambda _name, **values: seen.append(values))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _device: None)
    monkeypatch.setattr(memory, "current_gb", lambda _device: 1.0)
    monkeypatch.setattr(memory, "usable_gb", lambda *_: 9.0)
    monkeypatch.setattr(memory, "place", lambda _device: {})
    monkeypatch.setattr(probe, "to_come_bytes", lambda _engine: 2e9)
    monkeypatch.setattr(probe, "_can_probe", lambda *_: True)
    monkeypatch.setattr(probe, "_peak_gb", lambda _model, samples, *_: 0.5 * samples)
    return seen


BASE, SAMPLE, USABLE = {"after_init_gb": 3.0}, {"per_sample_gb": 0.5}, {"usable_gb": 9.0}


@pytest.mark.parametrize(
    ("place", "name", "error", "left"),
    [
        (probe, "_peak_gb", None, BASE | SAMPLE | USABLE),
        (probe, "_peak_gb", torch.OutOfMemoryError("CUDA out of memory"), BASE | USABLE),
        (probe, "_peak_gb", RuntimeError("element 0 of tensors does not require grad"), BASE | USABLE),
        (probe, "_can_probe", AttributeError("zero_optimization_stage"), BASE | USABLE),
        (probe, "to_come_bytes", AttributeError("param_groups"), USABLE),
        (memory, "usable_gb", RuntimeError("not supported"), BASE),
    ],
)
def test_what_cannot_be_measured_is_left_out_and_training_goes_on(
    place: Any,
    name: str,
    error: Exception | None,
    left: dict[str, float],
    reported: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> float:
        assert error
        raise error

    if error:
        monkeypatch.setattr(place, name, fail)
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    job = Job.from_environment({**Attempt(tmp_path).prepare(tmp_path), **ranks})
    config = train_config()
    engine: Any = SimpleNamespace(device=Gpu(), module=None)
    report_memory(engine, config, job)
    assert reported == [dist.ReduceOp.MAX, dist.ReduceOp.MIN, {"micro_batch": config.micro_batch, **left}]
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("warning: memory could not be measured beforehand") for line in said)
    assert bool(said) == bool(error)
    assert not error or str(error) not in said[0]
