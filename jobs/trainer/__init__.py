"""The built-in trainer for causal language models. Nothing else loads torch."""
