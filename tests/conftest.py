from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from fedpbc.algorithms import ALGORITHMS
from fedpbc.data import SOURCES
from fedpbc.links import SCHEMES
from fedpbc.parallel import leave_cores_to_others
from fedpbc.tasks.networks import MODELS

# A busy machine is no reason to fail, and CI is not the place to look for new examples.
settings.register_profile(
    "suite",
    deadline=None,
    # Half of the usual number: `make test` has fifteen minutes, `make test-random` finds others.
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("suite")

# Nothing of a test may depend on what an earlier run decoded, nor remain on the machine.
os.environ["FEDPBC_CACHE"] = ""


@pytest.hookimpl(tryfirst=True)  # Before tests are left out by their marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most cases of a sampled test to `make test-long`; begin with what takes longest."""
    _mark_sampled(items)

    def rank(item: pytest.Item) -> int:
        # The fleet of real processes waits more than it computes: other tests run beside it.
        if item.path.name == "test_processes.py":
            return 0
        # One after another in one process: each process with such a test starts a Ray of its own.
        if _needs_ray(item):
            return 1
        return 2 if item.get_closest_marker("slow") else 3

    items.sort(key=rank)


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _mark_sampled(items: list[pytest.Item]) -> None:
    """Mark all but every n-th case of ``sampled(n)`` as long; with engines, those of processes."""
    counts: Counter[tuple[object, ...]] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        engine = _parameters(item).get("engine")
        if mark is None or engine in ("serial", "stacked"):
            continue
        test = item.nodeid.partition("[")[0], engine
        if counts[test] % mark.args[0]:
            item.add_marker(pytest.mark.long)
        counts[test] += 1


def _needs_ray(item: pytest.Item) -> bool:
    parameters = _parameters(item)
    return "local_ray" in getattr(item, "fixturenames", ()) or parameters.get("engine") == "ray"


@pytest.fixture(params=["serial", "stacked"])
def engine(request):
    """Each of the engines, as the function that makes one for a task."""
    # The process that only hands tests to others need not wait for torch.
    from fedpbc.engines import ENGINES

    return ENGINES[request.param]


@pytest.fixture(scope="session")
def fork_server():
    """Runs commands that are killed; torch is imported once for all of them."""
    from tests.killed import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def browser():
    """A browser without a window; tests are skipped where none is installed."""
    from tests.report.browser import BROWSER, BROWSERS

    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip(f"no browser is installed: {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as control:
        browser = control.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def _own_plugins():
    """What a test's plugins bring is gone after it."""
    before = [(registry, dict(registry)) for registry in (ALGORITHMS, SCHEMES, SOURCES, MODELS)]
    yield
    for registry, known in before:
        registry.clear()
        registry.update(known)


@pytest.fixture(autouse=True)
def _own_logging():
    """Commands set up logging for a process of their own; the next test finds it as it was."""
    logger = logging.getLogger("fedpbc.deployment")
    level, handlers = logger.level, logger.handlers[:]
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture(autouse=True, scope="session")
def _private_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which plugins were trusted is remembered per user: not that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_core() -> None:
    """What starts a process per core starts none: tests run side by side themselves.

    A test of several processes says how many.
    """
    leave_cores_to_others()


@pytest.fixture
def signals_as_in_a_terminal() -> Iterator[None]:
    """SIGINT and SIGHUP end processes here, although ``nohup`` or a background job ignores them."""
    ignored = [n for n in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_IGN]
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number in ignored:
        signal.signal(number, defaults[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
