"""Operating a fleet: processes, set-up, status and checks."""
