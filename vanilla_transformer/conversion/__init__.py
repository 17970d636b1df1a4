"""Checkpoints of other projects, and for other runtimes."""
