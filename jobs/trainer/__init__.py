"""The built-in trainer for causal language models; alone loads torch. May import `jobs.shared` and below."""
