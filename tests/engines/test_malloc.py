"""Memory of processes that only train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedpbc.engines import PoolEngine, Segment
from fedpbc.engines.malloc import with_huge_pages
from fedpbc.tasks import Quadratic


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "a=1:b=2"}, "a=1:b=2:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0"),
    ],
)
def test_large_pages_are_asked_for_unless_the_user_has_decided(before, after):
    assert with_huge_pages({"HOME": "/", **before}) == {"HOME": "/", "GLIBC_TUNABLES": after}


@pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc")
def test_workers_ask_for_large_pages(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    task = Quadratic([[8.0], [4.0]])
    engine = PoolEngine(task, workers=1)
    try:
        engine.submit(Segment(0, task.init(), 0, 1, 0))
        engine.result(0)
        [worker] = engine.processes()
        variables = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
        assert b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in variables
    finally:
        engine.close()
