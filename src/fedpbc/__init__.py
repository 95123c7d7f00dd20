"""Federated learning that stays unbiased when uplinks fail."""
