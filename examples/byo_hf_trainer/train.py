"""A script around the Hugging Face Trainer: the callback is all that a campaign needs of it.

Needs the package accelerate, which the Trainer needs.
"""

import json
import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from dscampaign.hf import CampaignCallback, last_checkpoint

SEQ_LEN, VOCAB, SAMPLES = 64, 256, 4096


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
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[CampaignCallback()])
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))


if __name__ == "__main__":
    main()
