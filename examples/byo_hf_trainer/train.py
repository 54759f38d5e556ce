"""A script around the Hugging Face Trainer: the callback is all that a campaign needs of it.

Needs the package accelerate, which the Trainer needs.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from dscampaign import report, should_stop

SEQ_LEN, VOCAB, SAMPLES = 64, 256, 4096
NAMES = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "eval_loss": "eval_loss"}


class Campaign(TrainerCallback):  # type: ignore[misc]
    """Reports what the Trainer logs, and lets it save and leave when the campaign asks."""

    def on_log(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, logs: dict[str, float], **_: Any
    ) -> None:
        """Reports the known numbers of a step."""
        report(state.global_step, **{NAMES[name]: value for name, value in logs.items() if name in NAMES})

    def on_step_end(self, args: TrainingArguments, _state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Asks on all ranks, so that all stop at the same step."""
        asked = torch.tensor(float(should_stop()), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(asked)
        if asked > 0:  # exit code 0 before the last step: the run was stopped, and resumes later
            control.should_save = control.should_training_stop = True


def main() -> None:
    """Trains a tiny GPT-2 to count."""
    config = json.loads(Path(os.environ["CAMPAIGN_DS_CONFIG"]).read_text())
    optimizer = config.pop("optimizer")  # the Trainer makes its own
    del config["train_batch_size"]  # and works this out from the two numbers below
    arguments = TrainingArguments(
        output_dir=os.environ["CAMPAIGN_CHECKPOINT_DIR"],
        deepspeed=config,
        max_steps=int(os.environ["CAMPAIGN_STEPS"]),
        per_device_train_batch_size=int(os.environ["CAMPAIGN_MICRO_BATCH"]),
        gradient_accumulation_steps=int(os.environ["CAMPAIGN_ACCUMULATION"]),
        learning_rate=optimizer["params"]["lr"],
        seed=int(os.environ["CAMPAIGN_SEED"]),
        logging_steps=1,
        save_steps=10,
        report_to="none",
    )
    torch.manual_seed(arguments.seed)
    ids = (torch.randint(VOCAB, (SAMPLES, 1)) + torch.arange(SEQ_LEN)) % VOCAB
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=SEQ_LEN, vocab_size=VOCAB))
    data = [{"input_ids": sample, "labels": sample} for sample in ids]
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Campaign()])
    trainer.train(resume_from_checkpoint=any(Path(arguments.output_dir).glob("checkpoint-*")))


if __name__ == "__main__":
    main()
