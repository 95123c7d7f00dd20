"""The server of a fleet: the round loop, its folder, and the gateway."""
