"""Default values that several packages share; each is written here and nowhere else.

What only a run's configuration knows has its default in :mod:`fedpbc.experiments.settings`.
"""

__all__ = ["ALPHA", "CLIENTS", "EVALUATE_EVERY", "TRAIN_SAMPLES"]

CLIENTS = 100
"""m."""
ALPHA = 0.1
"""α of the Dirichlet partition."""
TRAIN_SAMPLES = 5000
"""How many training samples the training accuracy is evaluated on."""
EVALUATE_EVERY = 10
"""Rounds between evaluations."""
