from __future__ import annotations

import logging
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


@pytest.fixture(autouse=True)
def default_log_level():
    """A server or trainer that ran in this process has set its own level."""
    logging.getLogger("fedpbc.deployment").setLevel(logging.NOTSET)
