"""The commands of ``fedpbc``, one module each: thin; they parse, call and print."""
