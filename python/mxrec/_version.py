"""The version of the package; the op library carries the same text (a test compares them)."""

__version__ = "0.1.0"
