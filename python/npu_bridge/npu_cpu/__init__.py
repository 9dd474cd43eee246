"""Ops that the NPU adapter runs on the host."""
