"""Builds the operator of test_nvme.py: minutes of compiling in a new environment, while the other tests run."""

from dscampaign.jobs.trainer.deepspeed_patches import build_operators

from .attempts import train_config

if __name__ == "__main__":
    on_disk = {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "unused"}}}
    build_operators(train_config(zero_stage=3, offload="nvme", nvme_path="unused"), on_disk)
