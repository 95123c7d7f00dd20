"""APPFL: its serial simulation, with its agents for simulations and its VanillaTrainer.

The loop is that of its script ``simulation/run_sim.py`` for partial participation, but the new
model is loaded by the clients that train next instead of by all, and the collections of garbage
after every call are turned off: memory is not what is measured.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.data import TensorDataset

from benchmarks.peers.counted_loss import CountedLoss
from benchmarks.protocol import serve
from benchmarks.work import Prepared, participation


def main() -> None:
    """Take the folder of the work from the command line and serve."""
    # Installed without piq, which it imports for reports on data that nobody asks for here.
    sys.modules["piq"] = ModuleType("piq")
    from benchmarks.peers.appfl_agents import ClientAgent, OwnModel, ServerAgent, settings

    folder = Path(sys.argv[1])
    data = Prepared.read(folder).touch()
    OwnModel.work = work = data.work
    of_server, of_client = settings(work, folder)
    server = ServerAgent(server_agent_config=of_server)
    clients = []
    for number in range(work.clients):
        part = data.part(number)
        samples = TensorDataset(data.inputs[part], data.labels[part])
        clients.append(ClientAgent(of_client, client_id=number, client_dataset=samples))
    table, done = participation(work), 0
    model = server.get_parameters(serial_run=True)

    def run(rounds: int) -> int:
        nonlocal model, done
        CountedLoss.calls = 0
        for _ in range(rounds):
            for number in table[done % len(table)].nonzero()[0]:
                client = clients[int(number)]
                client.load_parameters(model)
                client.train(round=done)
                local_model, about_training = client.get_parameters()
                future = server.global_update(
                    client.get_id(), local_model, blocking=False, **about_training
                )
            # That of the last client: with it the model of the round is complete.
            model = future.result()
            done += 1
        return CountedLoss.calls

    about = {name: version(name) for name in ("appfl", "torch")}
    serve(run, about | {"threads": torch.get_num_threads()})


if __name__ == "__main__":
    main()
