"""Real out-of-memory on one GPU, and what the memory ledger predicts of memory."""
