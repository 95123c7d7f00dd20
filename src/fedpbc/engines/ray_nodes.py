"""The nodes of a Ray cluster: how many CPUs they have, which came and went, whether any is left."""

from __future__ import annotations

import time
import warnings

from fedpbc.engines.ray_probe import check_answer

__all__ = ["ClusterNodes"]

REFRESH_SECONDS = 2.0
"""How old a list of nodes may be: Ray is not asked for every segment."""
NODELESS_SECONDS = 300.0
"""How long to wait for a node with a CPU: an autoscaler takes minutes to replace a lost one."""
HEADLESS_SECONDS = 20.0
"""How long to wait for the head to answer: after a minute, Ray ends this process without a word."""


class ClusterNodes:
    """The nodes of the cluster that this process has joined, as Ray lists them.

    Attributes:
        here: the id of the node that this process is on.
        joined: how many nodes were added since.
        lost: how many have died since.
    """

    def __init__(self) -> None:
        import ray

        context = ray.get_runtime_context()
        self.here, self._head = str(context.get_node_id()), str(context.gcs_address)
        self.joined = self.lost = 0
        self._cpus = list_nodes()
        self._refreshed = time.monotonic()
        self._first, self._ever = frozenset(self._cpus), set(self._cpus)
        # Since when there has been no CPU, or no head.
        self._nodeless_since: float | None = None
        self._headless_since: float | None = None

    @property
    def count(self) -> int:
        """How many nodes took part at any time."""
        return len(self._ever)

    def cpus(self) -> int:
        """The number of CPUs, at least 1: an autoscaling cluster may start without."""
        self.refresh()
        return max(1, sum(self._cpus.values()))

    def refresh(self, max_age: float = REFRESH_SECONDS) -> None:
        """Ask Ray for its nodes, unless the last list is younger; a lost one is a warning."""
        if time.monotonic() - self._refreshed < max_age:
            return
        self._refreshed = time.monotonic()
        try:
            # Without a head, Ray would not answer the question below, nor return.
            check_answer(self._head)
        except OSError:
            self._headless_since = self._headless_since or time.monotonic()
            return
        self._headless_since = None
        before, self._cpus = self._cpus, list_nodes()
        self._ever |= set(self._cpus)
        self.joined = len(self._ever - self._first)
        if gone := len(set(before) - set(self._cpus)):
            self.lost += gone
            were = "was" if gone == 1 else "were"
            warnings.warn(
                f"{gone} of {len(before)} nodes of the Ray cluster {were} lost: what ran there is "
                "run again",
                stacklevel=2,
            )

    def has(self, node: str) -> bool:
        """Whether a node was there when Ray was last asked."""
        return node in self._cpus

    def missing(self) -> str | None:
        """One line if there has been no head, or no node with a CPU, for too long."""
        self.refresh()
        now = time.monotonic()
        if self._headless_since is not None:
            if now - self._headless_since < HEADLESS_SECONDS:
                return None
            return (
                f"the head of the Ray cluster, {self._head}, has not answered for "
                f"{HEADLESS_SECONDS:g} s"
            )
        if any(self._cpus.values()):
            self._nodeless_since = None
            return None
        if self._nodeless_since is None:
            self._nodeless_since = now
            warnings.warn(
                "no node of the Ray cluster has a CPU: waiting for one, at most "
                f"{NODELESS_SECONDS:g} s",
                stacklevel=2,
            )
        if now - self._nodeless_since < NODELESS_SECONDS:
            return None
        return f"no node of the Ray cluster has had a CPU for {NODELESS_SECONDS:g} s"


def list_nodes() -> dict[str, int]:
    """The number of CPUs of each live node, by its id."""
    import ray

    return {
        str(node["NodeID"]): int(node["Resources"].get("CPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    }
