"""Ops, and below `npu` everything around optimizers, sessions and Estimator."""
