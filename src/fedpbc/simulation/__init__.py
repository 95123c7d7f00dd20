"""The simulated server: its state, the round loop, views and metrics."""
