"""Stands for a training: `curve.py --lr 0.1` reports thirty steps of a loss, and trains nothing."""

import argparse
import os
import random
import time

from dscampaign import report

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
lr = parser.parse_args().lr
noise = random.Random(int(os.environ["CAMPAIGN_SEED"]))

loss = 4.0
for step in range(1, 31):
    time.sleep(0.02)
    loss -= lr * (loss - 1.0) + noise.gauss(0.0, 0.005)
    report(step, loss=loss, tokens=1024)
