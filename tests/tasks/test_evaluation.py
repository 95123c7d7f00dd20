from __future__ import annotations

import torch
from torch import nn

from fedpbc.tasks.evaluation import class_accuracies, mean_loss_and_hits


def test_hits_are_the_samples_that_are_classified_correctly():
    arguments = nn.Identity(), nn.functional.cross_entropy, lambda batch: batch
    loss, hits = mean_loss_and_hits(*arguments, torch.eye(2), torch.tensor([0, 0]))
    assert hits is not None
    assert hits.tolist() == [True, False]
    expected = nn.functional.cross_entropy(torch.eye(2), torch.tensor([0, 0]))
    assert abs(loss - float(expected)) < 1e-6


def test_a_class_without_samples_has_no_accuracy():
    found = class_accuracies(torch.tensor([0, 0]), torch.tensor([True, False]), classes=2)
    assert found == [0.5, None]
