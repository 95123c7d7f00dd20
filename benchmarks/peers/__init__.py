"""Other frameworks doing the same work, each in a virtual environment of its own."""
