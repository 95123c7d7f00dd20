from __future__ import annotations

import pytest

from fedpbc.engine import SerialEngine, StackedEngine


@pytest.fixture(params=[SerialEngine, StackedEngine], ids=["serial", "stacked"])
def engine(request):
    """Each of the engines, as the function that makes one for a task."""
    return request.param
