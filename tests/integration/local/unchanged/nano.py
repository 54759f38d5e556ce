"""A training loop that prints its losses as nanoGPT does, and knows nothing of campaigns."""

import sys
import time

STEPS = 40
lr, weight = float(sys.argv[1]), 4.0
began = time.time()
for iter_num in range(1, STEPS + 1):
    loss = weight**2 / 4
    weight -= lr * weight / 2
    if iter_num % 5 == 0:
        took, began = time.time() - began, time.time()
        print(f"iter {iter_num}: loss {loss:.4f}, time {took / 5 * 1000:.2f}ms, mfu -100.00%")
