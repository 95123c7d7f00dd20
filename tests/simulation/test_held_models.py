"""Which model each client holds, compared with a list."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpbc.simulation.held_models import HeldModels

CLIENTS = 5
MODELS = [torch.full((1,), float(k)) for k in range(4)]
CHANGES = st.lists(st.tuples(st.sets(st.integers(0, CLIENTS - 1)), st.integers(0, 3)))


@given(CHANGES, st.booleans())
def test_it_holds_what_a_list_holds(changes, at_once):
    held, wanted = HeldModels(MODELS[0], CLIENTS), [MODELS[0]] * CLIENTS
    for clients, k in changes:
        if at_once:
            held.put(np.array(sorted(clients), dtype=np.int64), MODELS[k])
        for client in clients:
            wanted[client] = MODELS[k]
            if not at_once:
                held[client] = MODELS[k]
    held.append(MODELS[3])
    wanted.append(MODELS[3])
    for other in (held, HeldModels.restored(held.state()), HeldModels.restored(wanted)):
        assert len(other) == CLIENTS + 1
        assert all(a is b for a, b in zip(other, wanted, strict=True))
        assert all(other[client] is wanted[client] for client in range(-1, CLIENTS + 1))
        # What nobody holds takes no memory.
        assert other.distinct == len(set(map(id, wanted)))
        other[0] = MODELS[1]
        assert other[0] is MODELS[1]
        other[0] = wanted[0]
