from __future__ import annotations

import os

import pytest
from hypothesis import settings

from fedpbc.algorithms import ALGORITHMS
from fedpbc.engines import SerialEngine, StackedEngine
from fedpbc.links import SCHEMES

# A busy machine is no reason to fail, and CI is not the place to look for new examples.
settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("suite")


@pytest.fixture(params=[SerialEngine, StackedEngine], ids=["serial", "stacked"])
def engine(request):
    """Each of the engines, as the function that makes one for a task."""
    return request.param


@pytest.fixture(autouse=True)
def _own_plugins():
    """What a test's plugins bring is gone after it."""
    before = [(registry, dict(registry)) for registry in (ALGORITHMS, SCHEMES)]
    yield
    for registry, known in before:
        registry.clear()
        registry.update(known)
