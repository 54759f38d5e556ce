"""GPT-2 with random weights under DeepSpeed, as short as a user of its autotuner would write it."""

import argparse
import json
import os
import time

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=12)
deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed()
small = json.loads(os.environ.get("TUNER_MODEL", "{}"))
seq_len = int(os.environ.get("TUNER_SEQ_LEN", "1024"))
torch.manual_seed(42)
config = GPT2Config(
    **{"n_positions": seq_len, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "use_cache": False, **small}
)
model = GPT2LMHeadModel(config)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=args.deepspeed_config)
micro_batch, accumulation = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
times = []
for step in range(args.steps):
    began = time.perf_counter()
    for _ in range(accumulation):
        tokens = torch.randint(config.vocab_size, (micro_batch, seq_len), device=engine.device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    times.append(time.perf_counter() - began)
    print(
        f"step {step} {times[-1]:.3f} s, {micro_batch * accumulation * seq_len / times[-1]:,.0f} tokens/s", flush=True
    )
