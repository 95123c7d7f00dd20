"""The fuzzer: generated command lines, files, folders and Python calls, and damage to folders.

A case is made from (seed, kind, number) alone, in a scratch folder with files beside and above it
that must not change. A worker imports everything once and forks for each case. See
``python -m tests.fuzz --help``.
"""
