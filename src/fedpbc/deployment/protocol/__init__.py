"""What travels between server and device."""
