"""Collective ops: npu_bridge.hccl.hccl_ops."""
