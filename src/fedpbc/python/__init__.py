"""Python's way to an experiment: simulate, compare, and results that show themselves."""
