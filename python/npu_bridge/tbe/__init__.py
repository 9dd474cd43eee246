"""Operators of the NPU's tensor engine, which recommenders do not use."""
