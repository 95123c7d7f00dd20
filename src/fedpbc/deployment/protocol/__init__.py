"""The messages between server and device."""
