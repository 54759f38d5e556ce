"""Tests with real parts: processes, torch, DeepSpeed, PostgreSQL, Slurm, the tools that metrics are forwarded to."""
