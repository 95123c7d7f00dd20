from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest


@pytest.fixture
def expired(monkeypatch):
    """Certificates that are made from now on ended a day ago."""
    now = datetime.now(UTC).replace(microsecond=0)
    dates = now - timedelta(days=9), now - timedelta(days=1)
    monkeypatch.setattr("fedpbc.flower.authority._from_now", lambda days: dates)
