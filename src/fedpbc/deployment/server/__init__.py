"""The server of a fleet: the round loop, its directory and the gateway."""
