"""APPFL's agents for simulations, and their settings.

In a module of its own: APPFL can only be imported once something stands in for piq.
"""

from __future__ import annotations

from pathlib import Path

from appfl.agent import SimClientAgent, SimServerAgent
from omegaconf import DictConfig, OmegaConf

from benchmarks.peers.counted_loss import CountedLoss
from benchmarks.work import Work, network

ENDLESS = 10**9
LEAN = {"optimize_memory": False}


class OwnModel:
    """For both agents: the network and the loss come from here instead of from files."""

    work: Work

    def _load_model(self) -> None:
        self.model = network(self.work)

    def _load_loss(self) -> None:
        self.loss_fn = CountedLoss()

    def _load_metric(self) -> None:
        # The trainer calls it after its steps; nothing is evaluated.
        self.metric = lambda labels, outputs: 0.0


class ServerAgent(OwnModel, SimServerAgent):
    """The server."""


class ClientAgent(OwnModel, SimClientAgent):
    """A client."""


def settings(work: Work, folder: Path) -> tuple[DictConfig, DictConfig]:
    """Of the server, and of every client."""
    logs = {"logging_output_dirname": str(folder / "appfl"), "logging_output_filename": ""}
    training = {
        "trainer": "VanillaTrainer",
        "mode": "step",
        "num_local_steps": work.local_steps,
        "optim": "SGD",
        "optim_args": {"lr": work.learning_rate},
        "train_batch_size": work.batch_size,
        "train_data_shuffle": True,
        "train_drop_last": True,
        "device": "cpu",
        **logs,
        **LEAN,
    }
    server = {
        "client_configs": {"train_configs": training, "model_configs": {}},
        "server_configs": {
            "num_clients": work.chosen,
            "num_global_epochs": ENDLESS,
            "device": "cpu",
            "scheduler": "SyncScheduler",
            "scheduler_kwargs": {"same_init_model": True, **LEAN},
            "aggregator": "FedAvgAggregator",
            "aggregator_kwargs": {"client_weights_mode": "equal", **LEAN},
            **logs,
            **LEAN,
        },
    }
    client = {"train_configs": training, **LEAN}
    return OmegaConf.create(server), OmegaConf.create(client)
