"""FedJAX: its federated averaging, on networks of the same layers in Haiku.

One client after another in compiled steps, as FedJAX comes, with XLA's threads. Its backend for
several devices, one client on each, needs a function that JAX has removed.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.protocol import serve
from benchmarks.work import CLASSES, Prepared, Work, participation


def build_network(work: Work):
    """The layers of ``work.network``, on pictures with the channels last, as JAX has them."""
    import haiku as hk
    import jax

    def apply(batch):
        if work.hidden:
            layers = [hk.Flatten(), hk.Linear(work.hidden), jax.nn.relu, hk.Linear(CLASSES)]
        else:
            layers = [
                *(hk.Conv2D(32, 3), jax.nn.relu, hk.MaxPool(2, 2, "VALID")),
                *(hk.Conv2D(32, 3), jax.nn.relu, hk.MaxPool(2, 2, "VALID")),
                *(hk.Flatten(), hk.Linear(256), jax.nn.relu),
                *(hk.Linear(64), jax.nn.relu, hk.Linear(CLASSES)),
            ]
        return hk.Sequential(layers)(batch["x"])

    return hk.transform(apply)


def main() -> None:
    """Take the folder of the work from the command line and serve."""
    import jax

    # FedJAX calls it by its old name, which newer versions of JAX no longer have.
    jax.tree_map = jax.tree_util.tree_map

    import fedjax

    data = Prepared.read(Path(sys.argv[1]))
    work = data.work
    inputs = data.inputs.permute(0, 2, 3, 1).contiguous().numpy()
    labels = data.labels.numpy()
    batches = 0

    def count(batch):
        """Every batch that a client is given passes here; it makes one step on it."""
        nonlocal batches
        batches += 1
        return batch

    preprocessor = fedjax.BatchPreprocessor([count])
    clients = []
    for number in range(work.clients):
        part = data.part(number)
        samples = {"x": inputs[part], "y": labels[part]}
        clients.append(fedjax.ClientDataset(samples, preprocessor))

    key = jax.random.PRNGKey(0)
    model = fedjax.create_model_from_haiku(
        transformed_forward_pass=build_network(work),
        sample_batch=clients[0].all_examples(),
        train_loss=lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(
            batch["y"], outputs
        ),
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn=fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(work.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.batch_size,
            num_epochs=None,
            num_steps=work.local_steps,
            drop_remainder=True,
        ),
    )
    table, done = participation(work), 0
    state = algorithm.init(model.init(key))

    def run(rounds: int) -> int:
        nonlocal state, done, batches
        batches = 0
        for _ in range(rounds):
            chosen = [int(client) for client in table[done % len(table)].nonzero()[0]]
            keys = jax.random.split(jax.random.fold_in(key, done), len(chosen))
            state, _ = algorithm.apply(
                state,
                [(client, clients[client], k) for client, k in zip(chosen, keys, strict=True)],
            )
            done += 1
        # Computations are only begun when they are called.
        jax.block_until_ready(state.params)
        return batches

    about = {name: version(name) for name in ("fedjax", "jax", "dm-haiku")}
    serve(run, about)


if __name__ == "__main__":
    main()
