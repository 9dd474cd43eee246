"""Profiles of runs (npu_bridge.profiler.profiler)."""
