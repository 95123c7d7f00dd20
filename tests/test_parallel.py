from __future__ import annotations

import pytest

from fedpbc import parallel
from fedpbc.parallel import one_core, usable_cores


def test_one_core_ends_with_its_block(monkeypatch):
    monkeypatch.setattr(parallel, "_core_limit", 7)
    with one_core():
        assert usable_cores() == 1
    assert usable_cores() == 7
    with pytest.raises(KeyError), one_core():
        raise KeyError
    assert usable_cores() == 7
