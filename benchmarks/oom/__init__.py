"""Real out-of-memory on one GPU, and what the batch ledger predicts of memory."""
