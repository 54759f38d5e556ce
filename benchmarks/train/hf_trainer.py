"""The Hugging Face Trainer with DeepSpeed, with the arguments that people give it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from .child import StepClock, Tokens, be_the_only_rank, precision_sections, without_cpu_kernels
from .serve import serve
from .work import LEARNING_RATE, Measured, Request


class Ticks(TrainerCallback):  # type: ignore[misc]
    """Tells the clock of each optimizer step."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def on_step_end(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """After the optimizer has moved."""
        self._clock.tick()


def train(request: Request) -> Measured:
    """Trains for as many steps as asked for."""
    be_the_only_rank()
    without_cpu_kernels(request)
    torch.manual_seed(0)
    model = request.work.model
    trained = arguments(request)  # before the model: it tells the library of ZeRO
    network = AutoModelForCausalLM.from_config(GPT2Config(**model.fields(model.vocab)), dtype=torch.float32)
    clock = StepClock(request)
    trainer = Trainer(network, trained, train_dataset=Tokens(request), callbacks=[Ticks(clock)])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return clock.measured(float(losses[-1]) if losses else float("nan"))


def arguments(request: Request) -> TrainingArguments:
    """Everything that does not follow from the work is the Trainer's default, but for files, which it writes none."""
    work = request.work
    return TrainingArguments(
        output_dir=request.folder,
        deepspeed=ds_config(request),
        per_device_train_batch_size=work.micro_batch,
        max_steps=request.warmup + request.steps,
        learning_rate=LEARNING_RATE,
        weight_decay=0.1,
        bf16=work.precision == "bf16",
        fp16=work.precision == "fp16",
        use_cpu=request.device == "cpu",
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def ds_config(request: Request) -> dict[str, object]:
    """What the library fills in from the arguments is `auto`."""
    automatic = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {
        **dict.fromkeys((*automatic, "gradient_clipping"), "auto"),
        **precision_sections(request),
        "zero_optimization": {"stage": request.work.zero_stage},
    }


if __name__ == "__main__":
    serve(train)
