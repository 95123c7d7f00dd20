from __future__ import annotations

import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, Algorithm, ClientResult, ClientRule, ServerInit
from fedpbc.deployment.protocol.messages import MessageError, Vector
from fedpbc.deployment.protocol.tensors import to_vectors
from fedpbc.deployment.server.upload_check import UploadCheck
from tests.deployment.rules import Drift

X0 = torch.arange(7.0)


def check_of(kind, **options):
    return UploadCheck(kind(ServerInit(X0, clients=3), **options))


@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [
        ("fedpbc", {}, {"model": 7}),
        ("mifa", {"memory": "server"}, {"model": 7}),
        ("mifa", {"memory": "client"}, {"change": 7}),
        ("scaffold", {}, {"model": 7, "control_change": 7}),
        ("amplified_scaffold", {}, {"model": 7, "control_change": 7}),
        ("focus", {}, {"tracker": 7}),
        ("area", {}, {"change": 7}),
        ("ca_fed", {}, {"model": 7, "loss": 1}),
    ],
    ids=str,
)
def test_the_sizes_of_all_uploads_are_known(name, options, sizes):
    check = check_of(ALGORITHMS[name], **options)
    assert check.sizes == sizes
    assert check.largest == 4 * sum(sizes.values())
    upload = {name: torch.ones(size) for name, size in sizes.items()}
    checked = check.checked(to_vectors(upload))
    assert all(torch.equal(checked[name], vector) for name, vector in upload.items())
    for name, size in sizes.items():
        for wrong in {1, size - 1, size + 1} - {size}:
            with pytest.raises(MessageError, match=f"vector of {wrong} values, not {size}$"):
                check.checked(to_vectors({**upload, name: torch.ones(wrong)}))


def test_a_rule_of_a_plugin():
    assert check_of(Drift).sizes == {"model": 7, "distance": 1}


class Fragile(ClientRule):
    """A rule that cannot be tried without data."""

    uploads = ("model", "more")

    def finish(self, work, end):
        return ClientResult({"more": torch.ones(int(1 / float((end - work.start).norm())))})


class FragileAlgorithm(Algorithm):
    name = "fragile"

    def client_rule(self):
        return Fragile()


def test_where_a_rule_cannot_be_tried_one_to_d_values_are_allowed():
    check = check_of(FragileAlgorithm)
    assert check.sizes == {"model": 7, "more": None}
    assert check.largest == 4 * 14
    for size in (1, 4, 7):
        check.checked(to_vectors({"model": X0, "more": torch.ones(size)}))
    for size in (0, 8):
        with pytest.raises(MessageError, match=rf"more: vector of {size} values, not 1 to 7$"):
            check.checked(to_vectors({"model": X0, "more": torch.ones(size)}))
    with pytest.raises(MessageError, match=r"more: vector of 0\.25 values, not whole ones"):
        check.checked({**to_vectors({"model": X0}), "more": Vector("float32", b"1")})
