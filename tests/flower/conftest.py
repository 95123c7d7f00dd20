from __future__ import annotations

import os

import pytest

pytest.importorskip("flwr")

# Before anything of Flower is imported: no telemetry, no look for a newer version, no installation.
os.environ.update(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
)


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch):
    """Flower's messages know the run that their process belongs to."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
