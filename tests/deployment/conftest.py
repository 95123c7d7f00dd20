from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest


class Past(datetime):
    """A clock that is nine days slow."""

    @classmethod
    def now(cls, tz=UTC):
        return datetime.now(tz) - timedelta(days=9)


@pytest.fixture
def long_ago(monkeypatch):
    """Certificates are issued nine days ago."""
    monkeypatch.setattr("fedpbc.deployment.security.certificates.datetime", Past)
