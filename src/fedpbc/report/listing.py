"""What there is to choose from, with one line each and its options."""

from __future__ import annotations

from typing import Any

from fedpbc.algorithms import ALGORITHMS
from fedpbc.data.sources import SOURCES
from fedpbc.experiments.tracking.choose import TRACKERS
from fedpbc.links import SCHEMES
from fedpbc.options import options_of

__all__ = ["everything", "show_listing"]

# Said here, so that listing does not wait for torch; a test keeps them true.
MODELS = {
    "mlp": "One hidden layer of 64.",
    "softmax": "Softmax regression.",
    "cnn_svhn": "The paper's for SVHN: two convolution blocks, FC128.",
    "cnn_cifar10": "The paper's for CIFAR-10: two convolution blocks, FC256, FC64.",
    "cnn_cinic10": "The paper's for CINIC-10: two convolution blocks, FC512, FC256, dropout.",
}
TASKS = {
    "classification": "Pictures of a data set, shared out by Dirichlet(data.alpha).",
    "quadratic": "F_i(x) = ‖x − u_i‖²/2 with task.targets, a .npy file of clients × dimensions.",
}
ENGINES = {
    "auto": "Picks, and says which and why.",
    "serial": "One client after another, one thread.",
    "stacked": "All clients' models as one tensor; for small dense models.",
    "pool": "Worker processes, one a core.",
    "ray": "Ray tasks, on this machine or a cluster; extra [ray].",
}
VIEWS = {
    "server": "x, the server's own model.",
    "averaged": "Its moving average; a server can keep it.",
    "mean": "The mean of all clients' models (fedpbc, fedawe); only a simulation has it.",
    "reported": "The mean of what each client reported last (fedpbc, fedawe); can be kept.",
}


def everything() -> dict[str, list[dict[str, Any]]]:
    """All that can be chosen.

    Example:
        >>> [entry["name"] for entry in everything()["algorithms"]][:2]
        ['fedpbc', 'fedavg']
    """
    return {
        "algorithms": [
            {
                "name": name,
                "summary": kind.summary(),
                "options": [str(o) for o in options_of(kind.__init__).values()],
                "paper": kind.paper,
            }
            for name, kind in ALGORITHMS.items()
        ],
        "links": [
            {
                "name": name,
                "summary": scheme.summary,
                "options": [str(option) for option in scheme.options.values()],
            }
            for name, scheme in SCHEMES.items()
        ],
        "data": [{"name": n, "summary": s.summary, "options": []} for n, s in SOURCES.items()],
        "models": _plain(MODELS),
        "tasks": _plain(TASKS),
        "engines": _plain(ENGINES),
        "views": _plain(VIEWS),
        "trackers": _plain(TRACKERS),
        "options": [
            {"name": "(top)", "summary": "What stands outside of sections.", "options": list(TOP)},
            {"name": "data", "summary": "Which pictures, and how.", "options": list(DATA)},
            {"name": "train", "summary": "The local steps and η_g.", "options": list(TRAIN)},
            {
                "name": "links, downlink",
                "summary": "Where p_i comes from: given, or drawn from each client's classes.",
                "options": ["p=…", "sigma=10.0", "delta=0.02"],
            },
        ],
    }


TOP = (
    "rounds=500",
    "seed=0",
    "clients=100",
    "engine=auto",
    "workers=0",
    "ray_address=…",
    "device=cpu",
    "evaluate_every=10",
    "views=…",
    "reported=memory",
    "checkpoint_every=0",
    "plugins=…",
    "track=…",
)
DATA = ("name=fashion", "dir=…", "alpha=0.1", "train_samples=5000")
TRAIN = (
    "local_steps=5",
    "batch_size=16",
    "learning_rate=0.05",
    "decay=true",
    "optimizer=sgd (momentum, adam)",
    "momentum=0.9",
    "proximal=0.0",
    "global_learning_rate=1.0",
)


def _plain(entries: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "summary": line, "options": []} for name, line in entries.items()]


def show_listing(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the listing."""
    for kind, entries in found.items():
        print(kind)
        for entry in entries:
            options = f"  [{', '.join(entry['options'])}]" if entry["options"] else ""
            print(f"  {entry['name']:<18} {entry['summary']}{options}")
        print()
    print("Set any option with --set, such as --set links.gamma=0.2 or --set algorithm.cutoff=20.")
