"""Runs and studies: a run is a value with an id, a study is a list of runs."""
