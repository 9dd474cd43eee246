"""Access to the op library."""
