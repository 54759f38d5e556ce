"""Lines that widespread training scripts print: what they say is right, or deliberately nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.collect.formats import STEPS, Line, StepForm
from dscampaign.jobs.collect.printed import CommonForms
from dscampaign.jobs.shared.layout import RunPaths
from dscampaign.tests.unit.jobs.test_collect import Looked, read

MEGATRON = (
    " [2026-01-01 00:00:00] iteration      295/  250000 | consumed samples:       302080 | elapsed time per iteration"
    " (ms): 86545.2 | learning rate: 9.150E-06 | global batch size:  1024 | lm loss: 2.504220E+00 | loss scale: 1.0 |"
    " grad norm: 0.231 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NEMO = (
    "Training epoch 0, iteration 95/99 | lr: 2e-06 | global_batch_size: 512 | global_step: 295 |"
    " reduced_train_loss: 11.03 | train_step_timing in s: 12.64"
)
LIGHTNING = (
    "Epoch 1:  30%|███       | 295/1000 [00:10<00:20, 29.5it/s, v_num=0, train_loss_step=2.75, train_loss_epoch=2.8"
)
TITAN = "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # tqdm, as in the examples of Diffusers: the percentage is no step
        ("Steps:  30%|##9       | 295/1000 [01:00<02:00,  4.9it/s, loss=2.75, lr=1e-5]", {"loss": 2.75, "lr": 1e-5}),
        (
            "Steps:  30%|##9       | 295/1000 [01:00<02:00,  4.9it/s, lr=1e-5, step_loss=2.75]",
            {"lr": 1e-5, "loss": 2.75},
        ),
        ("Steps: 5%|# | 295/999 [0, loss=3]\rSteps: 5%|# | 295/999 [0, loss=2]INFO epoch 0:", {"loss": 2.0}),
        # which of several steps
        ('{"max_steps": 1000, "step": 295, "loss": 2.1}', {"loss": 2.1}),
        ("total_steps: 1000 | step: 295 | loss 2.1", {"loss": 2.1}),
        ("{'step': 295, 'train_loss': 2.1, 'lr': 0.25}", {"loss": 2.1, "lr": 0.25}),
        ("micro_step=12 global_step=295 loss=2.1", {"loss": 2.1}),
        ("trainer/global_step: 295, step: 12, loss 2.1", {"loss": 2.1}),
        ("completed step: 295, seconds: 1.2, total_weights: 65536, loss: 10.5", {"loss": 10.5}),
        ("step 295: loss 1,234.5", {"loss": 1234.5}),
        ("2|295|Loss: 2.5:  12%|#  | 3/25 [00:10<00:23,  2.9s/it]", {"loss": 2.5}),  # torchtune, in a second epoch
        ("I0105 10:00:00.1 1402 metric_writer.py:60] [295] train_loss=2.5, gnorm=0.5", {"loss": 2.5, "grad_norm": 0.5}),
        ("micro 1179/4000 | optimizer step 295/1000 | loss=2.5 | gnorm=0.5", {"loss": 2.5, "grad_norm": 0.5}),
        ("step:295 - train/loss:2.5 - train/lr(1e-3):0.01 - train/time(s):1.2", {"loss": 2.5}),  # verl, a scaled rate
        ("step 295: acc nan loss 2.5 ppl inf grad norm 1.5", {"loss": 2.5, "grad_norm": 1.5}),
        # best and mean losses are not those of the step
        ("step 295 | best val loss 1.5 | loss 2.1", {"loss": 2.1}),
        ("step 295 | avg. loss 9 | mean of the loss 8 | loss 2.5", {"loss": 2.5}),
        ("step 295 | loss 9 | batch_loss: 2.5", {"loss": 2.5}),
        # rows below the names of their columns, and records with an item on each line
        ("step,loss,val_loss,lr\n295,2.5,,0.25", {"loss": 2.5, "lr": 0.25}),
        (
            "| Step | Training Loss | Validation Loss |\n|---|---|---|\n| 295 | 2.5 | 2.75 |",
            {"loss": 2.5, "eval_loss": 2.75},
        ),
        (
            "saves the loss of a step\n step   loss  gnorm     eta\n------\n  295  2.500    0.5 0:01:02",
            {"loss": 2.5, "grad_norm": 0.5},
        ),
        ("{'loss': 2.5,\n 'lr': 0.25,\n 'speed': {'tokens': 9},\n 'step': 295}", {"loss": 2.5, "lr": 0.25}),
        ('INFO {\n  "step": 295,\n  "loss": 2.5\n}', {"loss": 2.5}),
        ('{\n  "step": 9,\n  "layers": {\nstep 295: loss 2.5', {"loss": 2.5}),
        # the learning rate of the first group
        ("step 295 loss 2.5 lr-AdamW/group0: 0.25 lr-AdamW/group1: 9", {"loss": 2.5, "lr": 0.25}),
        ("Iteration 295. Loss is 2.5. peak lr 9", {"loss": 2.5}),
        # nanoGPT, and what came of it
        (
            "step   295/19560 | train loss 9.5 | norm 15.2 | lr 1e-05 | (1500.0 ms | 349525 tok/s)",
            {"loss": 9.5, "lr": 1e-5},
        ),
        ("step   295 | loss: 9.5 | lr 1e-04 | dt: 350.00ms | tok/sec: 1", {"loss": 9.5, "lr": 1e-4, "step_time": 0.35}),
        ("iter_dt 7797.5ms; iter 295: train loss 2.5", {"loss": 2.5, "step_time": 7.7975}),
        ("step:295/20000 train_loss:3.0 train_time:1500ms step_avg:150.00ms", {"loss": 3.0}),
        (MEGATRON, {"lr": 9.15e-06, "loss": 2.50422, "grad_norm": 0.231, "step_time": 86.5452}),
        (" validation loss at iteration 295 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |", {"eval_loss": 2.5}),
        ("[Rank 0] step=290, skipped=0, lr=[0.5]\n  step 295: loss 2.5, lr 1e-4", {"loss": 2.5, "lr": 1e-4}),
        (NEMO, {"lr": 2e-06, "loss": 11.03}),
        (f"{LIGHTNING}, global_step=295.0]", {"loss": 2.75, "train_loss_epoch": 2.8}),
        (f"{TITAN}step: 295  loss:  3.25  grad_norm:  0.5  memory:  9.46GiB(64.99%)", {"loss": 3.25, "grad_norm": 0.5}),
        ("Step 295 | loss:0.5 lr:2e-05 tokens_per_second_per_gpu:100", {"loss": 0.5, "lr": 2e-5}),  # torchtune
        (
            "[d2.utils.events]: iter: 295  total_loss: 2.5  time: 0.35 data_time: 0.01 lr: 0.25",
            {"loss": 2.5, "lr": 0.25},
        ),
        ("steps: 295 loss: 2.5 iter time (s): 0.125 samples/sec: 65.0", {"loss": 2.5, "step_time": 0.125}),  # DeepSpeed
        # LitGPT's iterations are those of micro-batches
        ("iter 590 step 295: loss 10.5, iter time: 197.87ms (optimizer.step)", {"loss": 10.5}),
        ("iter 590 step 295: loss 10.5\niter 590: val loss 5.5, val time: 212.11 ms", {"loss": 10.5}),
        # times of something else
        ("iter 295: loss 2.5, data time 3.1 ms, time 25.0 ms", {"loss": 2.5, "step_time": 0.025}),
        # the names of `report()`
        ("step 295 loss 2.5 step_time 0.0528 lr 1e-4", {"loss": 2.5, "step_time": 0.0528, "lr": 1e-4}),
        ("step=295, loss=2.5, step_time_ms=52.8", {"loss": 2.5, "step_time": 0.0528}),
        ("step 295 loss 2.5 step_time 52.8 us", {"loss": 2.5}),
        ("step 295 loss 2.5 step_time 1:30", {"loss": 2.5}),
        ("step 295: train loss 2.5, val loss 2.75, time 4000 ms", {"loss": 2.5, "eval_loss": 2.75}),
    ],
)
def test_what_scripts_print_is_understood(tmp_path: Path, text: str, line: Line) -> None:
    found = read(f"{text}\n", CommonForms(), tmp_path)
    assert {name: value for part in found for name, value in part.items()} == {"step": 295, **line}


@pytest.mark.parametrize(
    "text",
    [
        "loss 4.2",
        "[deepspeed] OVERFLOW! Rank 0 skipping step 3. Attempted loss scale: 65536, reducing to 32768",
        "step 3: loss of signal",
        "step 1.5: loss 2.5",
        "step 5, 7 and step 9: loss 2.5",
        "training step 5/100: loss 2.5/3.5",
        "step 5: loss 2.5x",
        "step 5: loss 2,345",  # 2.345 in some places
        f"step {'9' * 400}: loss 2.5",
        "total_steps: 1000 | loss 2.1",
        "micro_step=12 loss=2.1",
        "local step 5: loss 2.1",
        "val_step: 5 loss: 2.1",
        "step 5 | val ce loss 2.1",
        '{"loss": 2.1, "phase": "eval", "step": 5}',
        "step 5, loss 2.1 [test]",
        "step 5: avg. loss 2.1",
        "[1,3]<stdout>:step 5 loss 2.1",  # mpirun
        "[2,     5] loss: 2.1",  # of an unknown number in the first epoch
        "step split loss\n5 test 2.1",
        "2026-01-01 | INFO | train | epoch 001 | loss 2.1 | num_updates 5",  # fairseq's mean
        f"{TITAN}validate step: 5  loss:  2.1",
        "valid | step 5 | loss 2.1",
        "step 5 | best val loss 2.1",
        "Resuming from step 5, loss 2.1\nNew best model at step 5: loss 2.1",
        f"{LIGHTNING}]",
        "| epoch 001:    450 / 1891 loss=11.521, nll_loss=10.881, lr=8.9e-05, wall=882",  # fairseq, without its updates
        "2026-01-01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.5 | num_updates 445",
        " 12/100 [==>...........................] - ETA: 1s - loss: 0.3",  # Keras
        "Epoch [1][50/500]  lr: 1.0e-02, time: 0.3, data_time: 0.1, loss: 2.5",  # OpenMMLab
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3",
        "| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 25.00 | loss  7.6 | ppl 2000",
        "Training:  30%|███       | 295/1000 [00:10<00:20, 29.5it/s, loss=2.75]",  # of batches or of steps
    ],
)
def test_of_what_is_in_doubt_nothing_is_taken(tmp_path: Path, text: str) -> None:
    assert read(f"{text}\n", CommonForms(), tmp_path) == []


TRAINED = "step 25 | loss 2.75\n"
TOTALS = "step 5/20 | loss 3.5\nstep 20/20 | loss 4.5\n"
NO_TOTALS = "step 0 | loss 3.5\nstep 20 | loss 4.5\nstep 40 | loss 5.5\n"


@pytest.mark.parametrize(
    "block",
    [
        f"===== Validation =====\n{TOTALS}",
        f"[2026-03-02 11:20:41] INFO Running validation...\n{TOTALS}",
        f"***** Running Evaluation *****\n{NO_TOTALS}",
        f"--- Evaluating on dev set ---\n{NO_TOTALS}Resuming training\n",
        "Evaluation at step 25:\nstep 25 | loss 3.5\n",
        "Validation\nval acc 0.25\n",
        f"Validation data loaded\n{TRAINED}",
        "Validating\nstep 25 | eval_loss 3.5\n",
        f"Sanity validation\n{TOTALS}Training\n{TRAINED}",
    ],
)
def test_lines_below_a_banner_of_validation_are_no_training(tmp_path: Path, block: str) -> None:
    text = f"{TRAINED * (TRAINED not in block)}{block}step 30 | loss 2.5\n"
    found = read(text, CommonForms(1000), tmp_path)
    assert [(line["step"], line["loss"]) for line in found if "loss" in line] == [(25, 2.75), (30, 2.5)]
    assert ("eval_loss" in text) == any("eval_loss" in line for line in found)


BAR = "30%|###   | 30/100 [00:10<00:23,  2.9it/s"
BLOCKS = (
    "[batch=30/100]:\n\t Train time/epoch: 0\n\t Train metrics/train/LanguageCrossEntropy: 2.5",
    "12:00:00 INFO [train:1] [step=30/9999,epoch=0]\n    optim/total_grad_norm=1.5\n    train/CrossEntropyLoss=2.5",
    "[step=30/9999,epoch=1]\n    eval/lm/c4/CE loss=3.5\n    train/CE loss=2.5",
)
"""Of Composer, OLMo, and OLMo-core: a line with the step, above those of its metrics."""
OF_STEPS = (  # a run of 100 steps
    *BLOCKS,
    f"{BAR}, loss=2.5]",
    "Progress on:train 30.0it/100it rate:1.2it/s remaining:13:20 postfix:loss=2.5",  # Levanter
    f"Epoch 1/1: {BAR}, loss=tensor(2.5)]",
    f"1|30|Loss: 2.5: {BAR}]",  # torchtune
    f"Train step of epoch 0: {BAR}, gpt_loss=2.5, loss_mean=9]",  # OpenRLHF
    f"batch_loss: 2.5, loss: 9 ||: {BAR}]",  # AllenNLP
    "(trainer:732) INFO: 1epoch:train:21-30batch: loss_ctc=9, loss=2.5, optim0_lr0=0.25",  # ESPnet
    "[rank0]: [30/100] loss=2.5",
    "2026-05-01 12:00:00 - INFO - 30/100 - loss: 2.5",
    "Train: 30/100 loss=2.5",
    "(30/100) loss: 2.5",
    "05/01 12:00:00 - mmengine - INFO - Iter(train) [  30/100]  lr: 1e-4  eta: 0:10:00  loss: 2.5",
    "2026-05-01 12:00:00.123 | INFO     | __main__:train:42 - step 30 loss 2.5",  # loguru
    "\x1b[32m2026\x1b[0m | \x1b[1mINFO\x1b[0m | step \x1b[38:5:3m30\x1b[m loss \x1b[36m2.5\x1b[0m",
    "\x1b[?25l\x1b]0;title\x07step 30 loss 2.5",
    "step 30 | loss tensor([2.5], device='cuda:0', dtype=torch.bfloat16)",
    "Training loss (for one batch) at step 30: 2.5",
    "INFO:tensorflow:loss = 2.5, step = 30 (0.45 sec)",
    '{"_step": 30, "train/loss": 2.5}',
    "local step 5 (global 30): loss 2.5",
    "| epoch 001:    31 / 1891 loss=2.5, nll_loss=2.4, num_updates=30, lr=8.9e-05, wall=882",  # fairseq
    '2026-01-01 | INFO | train_inner | {"epoch": 1, "update": 0.1, "loss": "2.5", "num_updates": "30"}',
    "{'loss': 2.5, 'epoch': 0.1, 'global_step/max_steps': '30/100', 'percentage': '30.00%'}",  # ms-swift
    f"[INFO|2026-01-01 12:00:00] llamafactory.train.callbacks:143 >> {{'loss': 2.5, 'epoch': 0.1}}\n{BAR}]",
    "Step... (30/100 | Loss: 2.5, Learning Rate: 1e-05)",  # Transformers' examples for Flax
    "step.....30 loss.....2.5",
    "[2026-01-01 12:00:00,000 INFO] Step 30/  100; acc: 10.0; ppl: 12.2; xent: 2.5;     10 sec;",  # OpenNMT
    r'{"level": "INFO", "message": "{\"step\": 30, \"loss\": 2.5}"}',
)
OF_EPOCHS = (  # of 100 batches each
    "Epoch 1/3\n 30/100 [======>.......................] - ETA: 1s - loss: 2.5",  # Keras
    f"Epoch 0: {BAR}, v_num=0, train_loss=2.5]",  # Lightning
    "Epoch 0/2 ━━━━╸━━━ 30/100 0:00:01 • 0:00:09 10.00it/s v_num: 0.000 train_loss: 2.500",
    "05/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][ 30/100]  lr: 1e-4 loss: 2.5",
    "Epoch 1/3, Batch 30/100, Loss: 2.5",
    "Epoch: [0]  [ 30/100]  eta: 0:00:10  lr: 0.01  loss: 2.5 (2.75)  time: 0.3  data: 0.1",  # torchvision
    "| epoch   1 |    30/ 100 batches | lr 5.00 | ms/batch 12.50 | loss  2.50 | ppl    12.18",
)


@pytest.mark.parametrize("form", STEPS, ids=lambda form: form.example)
def test_each_form_reads_its_example(tmp_path: Path, form: StepForm) -> None:
    (line,) = read(f"{form.example}\n", CommonForms(1000), tmp_path)
    assert (line["step"], line["loss"]) == (295, 2.5)
    assert form.pattern.search(form.example)


@pytest.mark.parametrize(
    ("text", "run_steps"), [*((text, 100) for text in OF_STEPS), *((text, 300) for text in OF_EPOCHS)]
)
def test_a_line_of_step_30_is_read(tmp_path: Path, text: str, run_steps: int) -> None:
    form = CommonForms(9999 if "9999" in text else run_steps)
    found = read(f"{text}\n", form, tmp_path)
    assert {(line["step"], line["loss"]) for line in found if "loss" in line} == {(30, 2.5)}
    assert {line["step"] for line in found} == {30}


@pytest.mark.parametrize(
    ("text", "run_steps"),
    [
        ("Epoch 3/10 train_loss: 2.5 val_loss: 3.5", 30),
        ("Evaluating: 100%|##| 10/10 [00:01<00:00, loss=2.5]", 10),
        ("Finding best initial lr:  30%|###   | 3/10 [00:01<00:00, loss=2.5]", 10),  # Lightning
        ("Validation DataLoader 0:  30%|###   | 3/10 [00:01<00:00, loss=2.5]", 10),
        ("Epoch 3/10: 100%|###| 40/40 [00:01<00:00, val_loss=2.5]", 400),
        ("Evaluation at step 30:\n    loss: 2.5", 100),
        ("Loading checkpoint shards: 100%|##| 10/10 [00:01<00:00]", 10),
        ("Loaded checkpoint at step 500 (loss 2.5)", 1000),
        ("Epoch 1\n-------\nloss: 2.5  [   64/60000]\nloss: 2.25  [ 6464/60000]", 938),  # samples
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.5", 60000),
        ("Epoch 1/3, Batch 30/100, Loss: 2.5", 250),
        (f"{BAR}, loss=2.5]", 250),
        ("rank 1/8: loss 2.5", 8),
        ("12:00:00,1 INFO [train.py:863] (0/8) Epoch 1, batch 50, loss[loss=2.5, simple_loss=3], lr: 3.0e-03", 8),
        ("[2026/05/01 10:00:00] loss 2.5", 5),
        ("config:\n    steps: 100\n    loss_weight: 2.5", 100),
    ],
)
def test_other_counts_are_no_steps(tmp_path: Path, text: str, run_steps: int) -> None:
    assert read(f"{text}\n", CommonForms(run_steps), tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "Epoch {e}/3 train_loss: {e}.5 val_loss: 9\n",
        "Training epoch {e}/3 loss {e}.5\nlearning rate 1e-3\nval_loss 9\n",
        "12:00:01 - INFO - Epoch: [{e}/3] - loss: {e}.5, time 3 s\nValidation: val_loss=9\n",
        "epoch: {e}, lr: 1.00e-03 - train loss: {e}.5 - valid loss: 9\n",  # SpeechBrain
        "Epoch {e}/3\n16/16 - 1s - 40ms/step - loss: {e}.5 - val_loss: 9\n",  # Keras
        "Epoch {e}/3: 50%|## | 8/16 [00:01, loss=9]\rEpoch {e}/3: 100%|#| 16/16 [00:02, loss={e}.5]\nval_loss 9\n",
    ],
)
def test_epochs_are_steps_if_the_run_has_as_many(tmp_path: Path, text: str) -> None:
    found = read("".join(text.format(e=epoch) for epoch in (1, 2, 3)), CommonForms(3), tmp_path)
    lines = [(line["step"], line["loss"], line["eval_loss"]) for line in found]
    assert lines == [(1, 1.5, 9), (2, 2.5, 9), (3, 3.5, 9)]
    assert read("Epoch 0: loss 3\nEpoch 1: loss 2\n", CommonForms(2), tmp_path)[1] == {"step": 2, "loss": 2.0}
    assert read("Epoch 0: loss 3\nEpoch 1: loss 2\n", CommonForms(3), tmp_path) == []  # perhaps of many steps each
    assert read("Epoch 1/3\nstep 5 loss 3\nEpoch 2/3: loss 4\nstep 9 loss 2\n", CommonForms(3), tmp_path) == [
        {"step": 5, "loss": 3.0},
        {"step": 9, "loss": 2.0},
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("step 1 loss 3\nvalidation loss: 3.5\nstep 2 loss 2\nval_loss=2.5 ppl 12\n", {1: 3.5, 2: 2.5}),
        ("step 1 loss 3\nEpoch 1/2: train_loss 2.9, val_loss 3.5\nepoch 1 val_loss 3.5, new best\n", {1: 3.5}),
        (f"{BAR}, loss=2.5]\nEval loss 3.5\n", {30: 3.5}),
        ("step 1 loss 3\nval batch 0 val_loss 3\nval batch 1 val_loss 4\nval_loss 3.5\n", {}),
        ("step 1 loss 3\nLoaded best model (val_loss 2.5)\nbest val loss 2.5\nval 50%|# | 1/2 [val_loss=2]\n", {}),
        ("epoch 1 val_loss 3.5\nstep 1 loss 3\n", {}),
        # of a step that only its line calls a validation's
        ("step 1 loss 3\n[val] | step 1 | loss 3.5\nstep 2 loss 2\n", {1: 3.5}),
        ('{"step": 1, "loss": 3}\n{"loss": 3.5, "split": "val", "step": 1}\n', {1: 3.5}),
        ("step 1 loss 3\n validation results at iteration 1 | lm_loss value: 3.5E+00 |\n", {1: 3.5}),  # GPT-NeoX
        ("step 1 loss 3\n[Eval batch=2/2]:\n\t Eval metrics/eval/LanguageCrossEntropy: 3.5\n", {1: 3.5}),  # Composer
        ("step 2 loss 3\nval: iter 1 loss 3.5\nval: iter 2 loss 9\nstep 3 loss 2\n", {}),
        ("step 2 loss 3\nval: iter 1 loss 9\nval_loss 3.5\nstep 3 loss 2\n", {2: 3.5}),
    ],
)
def test_a_validation_loss_without_a_step_is_of_the_last_step(
    tmp_path: Path, text: str, values: dict[int, float]
) -> None:
    found = read(text, CommonForms(100), tmp_path)
    assert {line["step"]: line["eval_loss"] for line in found if "eval_loss" in line} == values


ANEW = [(epoch, step) for epoch in (1, 2, 3) for step in (100, 200)]
ON = [(epoch, step + 200 * (epoch - 1)) for epoch, step in ANEW]
COUNTED = [100, 200, 300, 400, 500, 600]


def epochs(tmp_path: Path, form: str, steps: list[tuple[int, int]]) -> tuple[list[int], str]:
    """The steps that are taken, and the remark."""
    taken = CommonForms()
    text = "".join(form.format(epoch=epoch, step=step, loss=3 - i / 10) for i, (epoch, step) in enumerate(steps))
    return [int(line["step"]) for line in read(text, taken, tmp_path)], taken.remark


@pytest.mark.parametrize(
    "form",
    [
        "Epoch [{epoch}/3], Step [{step}/600], Loss: {loss}\n",
        "Epoch {epoch} | step {step} | loss {loss}\n",
        '{{"epoch": {epoch}, "step": {step}, "loss": {loss}}}\n',
        "Epoch {epoch} | iter {step} step {step} | loss train: {loss}, val: n/a | iter time: 529.46 ms (step)\n",
    ],
)
def test_steps_that_go_on_are_as_they_are(tmp_path: Path, form: str) -> None:
    assert epochs(tmp_path, form, ON) == (COUNTED, "")
    assert epochs(tmp_path, form, ON[:2]) == (COUNTED[:2], "")
    resumed = [(epoch + 4, step + 800) for epoch, step in ON]
    assert epochs(tmp_path, form, resumed) == ([step + 800 for step in COUNTED], "")
    assert epochs(tmp_path, form, [*ON[:2], (2, 200), *ON[2:]])[0] == [100, 200, 200, *COUNTED[2:]]


def test_steps_that_cannot_be_counted_on_are_not_taken_and_that_is_said(tmp_path: Path) -> None:
    taken, remark = epochs(tmp_path, "Epoch {epoch}, step {step}: loss {loss}\n", ANEW)
    assert taken == []
    assert '"Epoch 1, step 100: loss 3.0"' in remark
    resumed = [(epoch + 1, step) for epoch, step in ANEW]
    for steps in (resumed, resumed[:2]):  # the first epoch may be 0 or 1
        taken, remark = epochs(tmp_path, "Epoch [{epoch}/4], Step [{step}/200], Loss: {loss}\n", steps)
        assert (taken, bool(remark)) == ([], True)
    once_each = [(1, 100), (2, 100)]
    assert epochs(tmp_path, "Epoch {epoch}, step {step}: loss {loss}\n", once_each)[0] == []


@pytest.mark.parametrize(
    "text", ["Epoch [{e}/3], Batch {b}/4, loss {l}\n", "Epoch {e}/3:  9%|# | {b}/4 [00:01, loss={l}]\r"]
)
def test_counts_of_epochs_are_steps_of_the_run_only_if_that_is_certain(tmp_path: Path, text: str) -> None:
    points = [(epoch, batch) for epoch in range(3) for batch in (1, 2, 3, 4)]

    def taken(begin: int, first: int, form: CommonForms) -> list[float]:
        printed = (text.format(e=epoch + first, b=batch, l=epoch * 4 + batch) for epoch, batch in points[begin:])
        lines = read("".join(printed), form, tmp_path)
        assert form.remark or all(line["loss"] == line["step"] for line in lines)
        return [line["step"] for line in lines]

    (tmp_path / "first").mkdir()
    for first in (0, 1):
        assert taken(0, first, CommonForms(12)) == list(range(1, 13))
        for begin in (6, 10):  # an attempt that resumes
            (tmp_path / "first" / "1_rank0.log").write_text(text.format(e=first, b=1, l=9) * 2)
            form = CommonForms(12, earlier=[tmp_path / "none", tmp_path / "first"])
            assert taken(begin, first, form) == list(range(begin + 1, 13))
        assert taken(0, first, CommonForms(4, accumulates=True)) == []  # perhaps of micro-batches
        assert taken(0, first, CommonForms(12, accumulates=True)) == list(range(1, 13))


@pytest.mark.parametrize(
    "text",
    [
        "[default{r}]:step {s} loss {l}\n",
        "[rank{r}]: step {s} loss {l}\n",
        "Rank {r} | step {s} | loss {l}\n",
        "step {s} | rank: {r} | loss {l} | slowest rank 3\n",
        "[GPU {r}] step {s} loss {l}\n",
        "worker-{r}: step {s} | loss {l} | [gpu 80 GB]\n",
    ],
)
def test_of_several_ranks_the_first_counts(tmp_path: Path, text: str) -> None:
    printed = (text.format(r=rank, s=step, l=2.5 if rank == 0 else 9) for step in (1, 2) for rank in (1, 0, 12))
    assert read("".join(printed), CommonForms(2), tmp_path) == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.5}]


def test_a_resumed_attempt_learns_the_first_epoch_from_an_earlier_one(tmp_path: Path) -> None:
    looked = Looked(tmp_path)
    looked.print("Epoch 0/3, Batch 1/4, loss 9\n")
    payload = replace(looked.attempt.payload, generation=2, target_step=12)
    later = RunPaths(Path(payload.run_dir)).attempt(2)
    later.logs.mkdir(parents=True)
    (later.logs / "1_rank0.log").write_text("Epoch 1/3, Batch 2/4, loss 2.5\n")
    Collector(payload, later, lambda: None).finish()
    assert [json.loads(line).get("step") for line in later.metrics.read_text().splitlines()] == [None, 6]


def test_a_held_out_loss_that_is_shown_again_is_of_its_own_step(tmp_path: Path) -> None:
    shown = "".join(f"step {step}: loss {9 - step}, val_loss: {5 - step // 3}\n" for step in range(1, 7))
    lines = read(shown, CommonForms(6), tmp_path)
    assert [line["step"] for line in lines if "eval_loss" in line] == [1, 3, 6]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]


def test_an_event_says_once_that_lines_are_not_read(tmp_path: Path) -> None:
    looked = Looked(tmp_path)
    collect = looked.collector()
    for epoch in (1, 2, 3):
        looked.print(f"Epoch {epoch}, step 5, loss 2.5\nEpoch {epoch}, step 9, loss 2.5\n")
        collect.look()
    collect.finish()
    (said,) = looked.reported()
    assert "count steps anew in each epoch" in said
    assert json.loads(looked.attempt.paths.metrics.read_text())["event"] == "metrics_source"


def test_the_loss_of_a_step_comes_before_the_mean_of_an_evaluation(tmp_path: Path) -> None:
    """As nanoGPT prints them: the training loss beside `val loss` is a mean over other batches."""
    looked = Looked(tmp_path)
    collect = looked.collector()
    looked.print("step 0: train loss 4.5, val loss 4.75\niter 0: loss 4.25, time 9 ms\n")
    looked.print("step 9: train loss 4, val loss 3\niter 9: time 9 ms\n")
    collect.finish()
    lines = map(json.loads, looked.attempt.paths.metrics.read_text().splitlines()[1:])
    values = [(line["step"], line.get("loss"), line.get("eval_loss")) for line in lines]
    assert values == [(0, None, 4.75), (0, 4.25, None), (9, None, 3), (9, 4, None)]


def test_the_last_epoch_alone_is_counted_on(tmp_path: Path) -> None:
    text = "Epoch 2/2 ━━━━ 40/40 0:00:01 train_loss: 2.5\n"  # all that Rich writes to a file
    assert read(text, CommonForms(120), tmp_path) == [{"step": 120, "loss": 2.5}]
