"""A device of a fleet: the resident trainer and the Flower client app."""
