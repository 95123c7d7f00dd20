"""A device of a fleet: the trainer process, and the Flower client app that talks to it."""
