"""Operating a fleet: set-up, processes, status and checks."""
