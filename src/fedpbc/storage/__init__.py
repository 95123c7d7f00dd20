"""Files that outlive a crash: atomic writes, TOML, arrays and tensors on disk."""
