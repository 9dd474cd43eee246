"""How gradients are split for exchange: hccl.split.api."""
