"""The original's public names of experimental parts."""
