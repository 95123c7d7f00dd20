"""Tuning: step sizes and options chosen on held-out training data, by successive halving."""
