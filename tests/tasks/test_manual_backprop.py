"""The written-out backward pass gives what autograd gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpbc.tasks.manual_backprop import manual_backprop
from fedpbc.tasks.networks import MODELS, build_model


def autograd_gradients(module, inputs, labels):
    loss = functional.cross_entropy(module(inputs), labels)
    return torch.autograd.grad(loss, list(module.parameters()))


def pictures(shape=(8, 12, 3), count=7):
    torch.manual_seed(3)
    height, width, channels = shape
    inputs = torch.randn(count, height, width, channels).permute(0, 3, 1, 2)
    return inputs, torch.arange(count) % 5


PLAIN = [name for name in MODELS if not name.startswith(("resnet", "lstm", "transformer"))]


def test_networks_with_other_layers_are_left_to_autograd():
    assert manual_backprop(build_model("resnet20_gn", (8, 8, 3), 5, seed=1)) is None


@pytest.mark.parametrize("name", PLAIN)
def test_every_plain_network_has_autograds_gradients(name):
    module = build_model(name, (8, 12, 3), 5, seed=1).to(memory_format=torch.channels_last)
    inputs, labels = pictures()
    backprop = manual_backprop(module)
    assert backprop is not None
    torch.manual_seed(0)
    expected = autograd_gradients(module, inputs, labels)
    torch.manual_seed(0)
    gradients = backprop.gradients(inputs, labels)
    assert backprop.is_random == ("cinic" in name)
    for g, w in zip(gradients, expected, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_outputs_are_those_of_the_module_in_evaluation_mode(name):
    module = build_model(name, (8, 12, 3), 5, seed=1).to(memory_format=torch.channels_last)
    inputs, _ = pictures()
    outputs = manual_backprop(module).outputs(inputs)
    assert outputs.equal(module.eval()(inputs))


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Conv2d(3, 4, (3, 2), stride=2, padding=(1, 0), dilation=2), nn.Flatten()],
        lambda: [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1), nn.Flatten()],
        lambda: [nn.ReLU(), nn.Conv2d(3, 4, 3), nn.MaxPool2d((2, 3), ceil_mode=True), nn.Flatten()],
        lambda: [nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten(), nn.ReLU()],
    ],
)
def test_other_geometries(layers):
    torch.manual_seed(1)
    blocks = layers()
    inputs, labels = pictures()
    features = nn.Sequential(*blocks)(inputs).shape[1]
    module = nn.Sequential(*blocks, nn.Linear(features, 9), nn.ReLU(), nn.Linear(9, 5))
    before = inputs.clone()
    torch.manual_seed(0)
    expected = autograd_gradients(module, inputs, labels)
    torch.manual_seed(0)
    gradients = manual_backprop(module).gradients(inputs, labels)
    assert inputs.equal(before)
    for g, w in zip(gradients, expected, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)


def test_equal_values_in_a_pool_give_the_gradient_to_the_first():
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2))
    inputs, labels = torch.ones(1, 1, 2, 2), torch.zeros(1, dtype=torch.long)
    for g, w in zip(
        manual_backprop(module).gradients(inputs, labels),
        autograd_gradients(module, inputs, labels),
        strict=True,
    ):
        torch.testing.assert_close(g, w)


def test_a_step_is_minus_the_rate_times_the_gradient():
    module = build_model("cnn_svhn", (8, 12, 3), 5, seed=1)
    inputs, labels = pictures()
    gradients = autograd_gradients(module, inputs, labels)
    expected = [p.detach() - 0.1 * g for p, g in zip(module.parameters(), gradients, strict=True)]
    manual_backprop(module).sgd_step(inputs, labels, 0.1)
    for p, w in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-5, atol=1e-6)


class Twice(nn.Linear):
    """A subclass may do anything."""

    def forward(self, value):
        return 2 * super().forward(value)


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked():
    module = nn.Sequential(nn.Linear(4, 4))
    module[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return module


def partly_frozen():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].weight.requires_grad = False
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(Twice(4, 3)),
        nn.Sequential(nn.Linear(4, 3, bias=False)),
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding="same"), nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.GroupNorm(2, 4), nn.Linear(4, 3)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        shared(),
        hooked(),
        partly_frozen(),
    ],
)
def test_everything_else_is_left_to_autograd(module):
    assert manual_backprop(module) is None
