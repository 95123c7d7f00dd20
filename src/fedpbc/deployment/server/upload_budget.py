"""How many bytes a device may send in an hour: what its messages ask for, and a little more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedpbc.deployment.server.http1 import RejectedRequest

__all__ = ["UploadBudget"]

HOUR = 3600.0
HEAD_BYTES = 1024
"""What a request counts besides its body."""
BASE = 2**26
"""Bytes per hour without any message: polls and heartbeats take about a tenth of it."""
ATTEMPTS = 4
"""How often a device may send the reply to one message: its link may break each time."""
MOST_SENDERS = 100_000


@dataclass
class Account:
    """What a device has sent since the hour began, and how many messages it has received."""

    began: float
    sent: int = 0
    messages: int = 0


class UploadBudget:
    """Counts bytes by key and hour.

    Example:
        >>> budget = UploadBudget(reply=1000)
        >>> budget.charge("a key", 2**26 - 1024)
        >>> budget.charge("a key", 1)
        Traceback (most recent call last):
        fedpbc.deployment.server.http1.RejectedRequest: more than 67,108,864 bytes in an hour
        >>> budget.count_message("a key")
        >>> budget.charge("a key", 1)
    """

    def __init__(self, reply: int, now: Callable[[], float] = time.monotonic) -> None:
        """Allow replies of so many bytes."""
        self._reply, self._now = reply, now
        self._accounts: dict[str, Account] = {}

    def charge(self, sender: str, body: int) -> None:
        """Count a request; a RejectedRequest if it is beyond the budget, and is not counted."""
        account = self._account(sender)
        limit = BASE + ATTEMPTS * self._reply * account.messages
        if account.sent + HEAD_BYTES + body > limit:
            raise RejectedRequest(429, f"more than {limit:,} bytes in an hour")
        account.sent += HEAD_BYTES + body

    def count_message(self, sender: str) -> None:
        """Note that a message was delivered, to which a reply is expected."""
        self._account(sender).messages += 1

    def _account(self, sender: str) -> Account:
        now = self._now()
        account = self._accounts.get(sender)
        if account is None or now - account.began >= HOUR:
            if len(self._accounts) >= MOST_SENDERS:
                # Without keys, whoever connects has an account.
                self._accounts.clear()
            account = self._accounts[sender] = Account(now)
        return account
