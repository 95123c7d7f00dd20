"""What newcomers from other libraries write, and what it is called here."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["NOTES", "key_of", "place_in_python", "right_name"]

SYNONYMS = {
    "train.learning_rate": "lr eta client_lr local_lr step_size stepsize",
    "train.global_learning_rate": "global_lr server_lr server_learning_rate eta_g global_eta",
    "train.local_steps": "epochs local_epochs num_epochs n_epochs epochs_per_round tau num_steps",
    "train.batch_size": "batch bs batchsize mini_batch_size",
    "train.optimizer": "opt client_optimizer",
    "train.momentum": "",
    "train.weight_decay": "wd l2",
    "train.proximal": "mu proximal_mu prox_mu",
    "clients": "num_clients n_clients client_num total_clients num_supernodes",
    "rounds": "num_rounds n_rounds comm_rounds comm_round communication_rounds global_rounds",
    "seed": "seeds random_seed random_state",
    "data.name": "dataset",
    "data.alpha": "dirichlet_alpha dir_alpha",
    "model.name": "net network arch",
    "algorithm.name": "algorithms algo strategy method",
    "links.name": "link availability",
}
"""By the key of our setting, its names elsewhere. Not all mean quite the same: see ``NOTES``."""
NOTES = {"train.local_steps": ", a number of batches: there are no epochs"}
"""What to add where a name elsewhere means something else."""
PLACES = {
    "train": "LocalTraining({name}=…), the task's training",
    "clients": "{name} of the task, such as Supervised(clients=…)",
    "rounds": "{name} of simulate",
    "data": "a task made of it, such as Supervised",
}
"""Where Python has a setting that is not an argument of the function that was called."""


def key_of(name: str) -> str | None:
    """The key of the setting that a name, ours or of another library, means.

    Example:
        >>> key_of("lr"), key_of("learning-rate"), key_of("gamma")
        ('train.learning_rate', 'train.learning_rate', None)
    """
    word = name.lower().replace("-", "_")
    for key, others in SYNONYMS.items():
        own = key.removesuffix(".name").rpartition(".")[2]
        if word == own or word in others.split():
            return key
    return None


def right_name(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that an unknown one means; of sections, a setting in one of them.

    Example:
        >>> right_name("lr", ["learning_rate"]), right_name("lr", ["train", "rounds"])
        ('learning_rate', 'train.learning_rate')
    """
    key, names = key_of(name), [*known]
    if key is None:
        return None
    section, _, option = key.rpartition(".")
    own = {"name": section, "global_learning_rate": "global_lr"}.get(option, option)
    found = next((each for each in (option, own) if each in names and each != name), None)
    if found is None and section in names:
        found = key
    return None if found is None else found + NOTES.get(key, "")


def place_in_python(name: str) -> str | None:
    """Where Python has what a name means, if not as an argument of the function called.

    Example:
        >>> place_in_python("lr")
        "LocalTraining(learning_rate=…), the task's training"
    """
    section, _, option = (key_of(name) or "").rpartition(".")
    place = PLACES.get(section or option)
    return None if place is None else place.format(name=option)
