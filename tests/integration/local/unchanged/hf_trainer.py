"""A script around the Hugging Face Trainer that knows nothing of campaigns."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

SEQ_LEN, VOCAB = 16, 64

torch.manual_seed(0)
ids = (torch.randint(VOCAB, (512, 1)) + torch.arange(SEQ_LEN)) % VOCAB
data = [{"input_ids": sample, "labels": sample} for sample in ids]
arguments = TrainingArguments(
    output_dir="trainer_output",
    max_steps=20,
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=10,
    save_strategy="no",
    learning_rate=float(sys.argv[1]),
    use_cpu=True,
    report_to="none",
)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=1, n_positions=SEQ_LEN, vocab_size=VOCAB))
Trainer(model, arguments, train_dataset=data, eval_dataset=data[:64]).train()
