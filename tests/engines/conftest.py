from __future__ import annotations

import pytest

from fedpbc.engines import choose_engine, ray_instance


@pytest.fixture(scope="session")
def local_ray():
    """One Ray for all tests: it takes seconds to start."""
    pytest.importorskip("ray", reason="needs the extra: pip install 'fedpbc[ray]'")
    ray_instance.start(2, "")
    yield
    ray_instance.stop()


@pytest.fixture(params=["serial", "stacked", "pool", "ray"])
def engine(request):
    """Each of the engines, as the function that makes one for a task."""
    made = []
    if request.param == "ray":
        request.getfixturevalue("local_ray")

    def make(task):
        workers = 1 if request.param == "pool" else 0
        made.append(choose_engine(request.param, task, workers=workers)[0])
        return made[-1]

    yield make
    for each in made:
        each.close()
