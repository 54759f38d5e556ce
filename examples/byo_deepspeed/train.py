"""A DeepSpeed script of one's own: what a campaign needs of it are the lines marked with (*)."""

import json
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

from dscampaign import report, should_stop  # (*)

STEPS = int(os.environ.get("CAMPAIGN_STEPS") or 20)  # (*)
CHECKPOINTS = Path(os.environ["CAMPAIGN_CHECKPOINT_DIR"])  # (*) outlives the attempt
SEQ_LEN, VOCAB, SAVE_EVERY = 64, 256, 10


def sample(step: int, micro_step: int, rank: int, size: int) -> torch.Tensor:
    """Numbers that count upwards from a random start: easy to learn, and the same when a run resumes."""
    generator = torch.Generator().manual_seed((step * 1_000 + micro_step) * 1_000 + rank)
    return (torch.randint(VOCAB, (size, 1), generator=generator) + torch.arange(SEQ_LEN)) % VOCAB


def leave(device: torch.device) -> bool:
    """Whether any rank was asked to stop: all must save at the same step."""
    asked = torch.tensor(float(should_stop()), device=device)  # (*)
    dist.all_reduce(asked)
    return bool(asked > 0)


def main() -> None:
    """Trains until STEPS or until asked to stop."""
    ds_config = json.loads(Path(os.environ["CAMPAIGN_DS_CONFIG"]).read_text())  # (*) batch sizes, ZeRO, precision
    torch.manual_seed(int(os.environ.get("CAMPAIGN_SEED") or 0))
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=SEQ_LEN, vocab_size=VOCAB))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)
    saved, _ = engine.load_checkpoint(str(CHECKPOINTS)) if (CHECKPOINTS / "latest").exists() else (None, {})
    for step in range(engine.global_steps + 1 if saved else 1, STEPS + 1):
        for micro_step in range(engine.gradient_accumulation_steps()):
            ids = sample(step, micro_step, dist.get_rank(), engine.train_micro_batch_size_per_gpu()).to(engine.device)
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
        report(step, loss=loss, lr=engine.get_lr()[0])  # (*)
        leaving = leave(engine.device)
        if leaving or step % SAVE_EVERY == 0 or step == STEPS:
            engine.save_checkpoint(str(CHECKPOINTS))
        if leaving:
            break  # (*) exit code 0 before the last step: the run was stopped, and resumes later


if __name__ == "__main__":
    main()
