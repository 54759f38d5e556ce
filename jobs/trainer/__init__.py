"""The built-in trainer for causal language models."""
