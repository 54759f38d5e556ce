"""Training speed of the built-in trainer beside that of other ways to train the same model, on one GPU."""
