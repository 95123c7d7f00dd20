"""Advice: which algorithm to run on some links, tuned and compared within a time budget."""
