"""DeepSpeed as its tutorials show it: eager attention, masks, the loss read every step, defaults for the rest."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config

from .child import StepClock, Tokens, be_the_only_rank, precision_sections, without_cpu_kernels
from .serve import serve
from .work import LEARNING_RATE, Measured, Request


def train(request: Request) -> Measured:
    """Trains for as many steps as asked for."""
    be_the_only_rank()
    import deepspeed  # reads the environment that was made above

    without_cpu_kernels(request)
    torch.manual_seed(0)
    work = request.work
    config = GPT2Config(**work.model.fields(work.model.vocab))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config(request))
    loader = DataLoader(Tokens(request, mask=True), batch_size=work.micro_batch, shuffle=True)
    clock, last = StepClock(request), 0.0
    for batch in loader:
        on_device = {name: tensor.to(engine.device) for name, tensor in batch.items()}
        loss = engine(**on_device).loss
        engine.backward(loss)
        engine.step()
        last = loss.item()
        clock.tick()
    return clock.measured(last)


def ds_config(request: Request) -> dict[str, object]:
    """The JSON of a tutorial; but AdamW is PyTorch's, for DeepSpeed's own needs a compiler on the machine."""
    adam = {"lr": LEARNING_RATE, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "torch_adam": True}
    return {
        "train_micro_batch_size_per_gpu": request.work.micro_batch,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": adam},
        **precision_sections(request),
        "zero_optimization": {"stage": request.work.zero_stage},
        "gradient_clipping": 1.0,
        "steps_per_print": 100,
    }


if __name__ == "__main__":
    serve(train)
