"""Experiments: configuration, run directories, checkpoints, comparisons and tracking."""
