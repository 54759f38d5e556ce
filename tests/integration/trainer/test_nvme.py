"""ZeRO-Infinity on a plain disk. DeepSpeed compiles an operator for it first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from dscampaign.tests.integration.trainer.attempts import Attempt

pytestmark = [pytest.mark.nightly, pytest.mark.training, pytest.mark.nvme]

MODEL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 512, "n_head": 2}  # DeepSpeed leaves less than 1 MB alone


@contextmanager
def _watched(folder: Path) -> Iterator[set[str]]:
    """The folders in which swap files are seen, by the attempt's part of their path."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            with suppress(FileNotFoundError):  # an attempt has just removed its folder
                seen.update(file.relative_to(folder).parts[0] for file in folder.rglob("*.tensor.swp"))

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield seen
    finally:
        over.set()
        watch.join()


def _saved(folders: pytest.TempPathFactory) -> Path:
    """Weights as somebody would publish them, which ZeRO 3 divides while it reads them."""
    folder = folders.mktemp("saved")
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODEL, vocab_size=257)).save_pretrained(folder)
    return folder


def test_what_lies_on_a_disk_learns_the_same(
    train_many: Callable[..., dict[str, Attempt]], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    infinity = {"model": MODEL, "zero_stage": 3, "offload": "nvme", "nvme_path": str(tmp_path)}
    optimizer = {"device": "nvme", "nvme_path": str(tmp_path), "pin_memory": True}
    mixed = {"zero_optimization": {"offload_optimizer": optimizer}, "zero_force_ds_cpu_optimizer": False}
    published = {**infinity, "model": str(_saved(tmp_path_factory)), "pretrained": True}
    with _watched(tmp_path) as seen:
        trained = train_many(
            ddp={"model": MODEL, "engine": "ddp", "zero_stage": 0},
            infinity=infinity,
            published=published,
            stopped={**infinity, "stop": True},
            mixed={"model": MODEL, "zero_stage": 3, "deepspeed": mixed},
            half={"model": MODEL, "zero_stage": 2, "precision": "bf16"},
            infinity_half={**infinity, "precision": "bf16"},
        )
    assert trained["infinity"].values("loss") == pytest.approx(trained["ddp"].values("loss"), abs=1e-3)
    assert trained["mixed"].values("loss") == pytest.approx(trained["ddp"].values("loss"), abs=1e-3)
    assert trained["infinity_half"].values("loss") == pytest.approx(trained["half"].values("loss"), abs=1e-3)
    assert len(trained["published"].values("loss")) == 6
    assert len(seen) == 5, "each attempt has a folder of its own"
    assert list(tmp_path.iterdir()) == [], "and leaves nothing of it"
    assert 0 < len(trained["stopped"].values("loss")) < 6
    assert list(trained["stopped"].checkpoints.iterdir()) == []  # DeepSpeed could not take it up again
