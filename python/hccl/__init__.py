"""Groups of ranks (hccl.manage.api) and how gradients are split for exchange (hccl.split.api)."""
