"""Algorithms with a client's side, for fleets in tests: those built in, and one of a plugin."""

from __future__ import annotations

from typing import Any

from fedpbc.algorithms import Algorithm, ClientResult, ClientRule, Scaffold, mean


class DriftClient(ClientRule):
    """Pulls against the way that the client moved, and uploads how far that was."""

    uploads = ("model", "distance")
    keeps = ("drift", "contacts")

    def initial_state(self, x0):
        return {"drift": x0 * 0, "contacts": x0[:1] * 0}

    def correction(self, work):
        return 0.1 * work.state["drift"].double() + 0.01 * work.received["pull"].double()

    def finish(self, work, end):
        drift = end.double() - work.start.double()
        contacts = work.state["contacts"] + 1
        return ClientResult(
            {"distance": drift.norm()[None]}, {"drift": drift, "contacts": contacts}
        )


class Drift(Algorithm):
    """Clients that keep their own models, train while offline, and keep something besides."""

    name = "drift"
    client_models = True
    everyone_trains = True

    def __init__(self, init):
        super().__init__(init)
        self.pull = self.x * 0

    def client_rule(self):
        return DriftClient()

    def message(self, client):
        return {"pull": self.pull * (client + 1)}

    def aggregate(self, round, updates):
        if updates:
            self.x = mean(update.model for update in updates)
            self.pull = (self.x.double() * float(mean(u["distance"] for u in updates))).to(
                self.x.dtype
            )


class PickyScaffold(Scaffold):
    """Uses only two of the uploads that arrive: the others must not count on the devices."""

    name = "picky"

    def select(self, round):
        return round.active[round.number % 2 :][:2]


STATEFUL: dict[str, Any] = {
    "scaffold": "scaffold",
    "mifa": {"name": "mifa", "memory": "client", "over": "heard", "rescale": True},
    "focus": "focus",
    "area": "area",
    "amplified_scaffold": {"name": "amplified_scaffold", "window": 3},
    "drift": Drift,
    "picky": PickyScaffold,
}
"""Algorithms whose clients keep something."""
