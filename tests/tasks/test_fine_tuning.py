"""Fine-tuning: only what asks for a gradient is trained, sent and stored."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpbc import InputError, LocalTraining, Result, Supervised, load_view, simulate

# PEFT calls what Transformers is about to rename; not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

RANDOM = torch.Generator().manual_seed(7)
IDS = torch.randint(0, 40, (96, 6), generator=RANDOM)
MASK = (torch.rand(96, 6, generator=RANDOM) < 0.9).long()
Y = IDS[:, 0] % 3
SAMPLES = {"input_ids": IDS, "attention_mask": MASK}, Y
UP = np.random.default_rng(1).random((6, 4)) < 0.6


class LoRA(nn.Module):
    """A frozen layer plus a product of two thin matrices that are trained."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Classifier(nn.Module):
    """Takes and returns what Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(40, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 3)
        for parameter in self.parameters():
            parameter.requires_grad = False
        self.dense = LoRA(self.dense, rank=2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None):
        weights = attention_mask.unsqueeze(2).float()
        mean = (self.embedding(input_ids) * weights).sum(1) / weights.sum(1).clamp(min=1)
        logits = self.head(self.dense(mean).relu())
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


def own_model() -> nn.Module:
    torch.manual_seed(0)
    return Classifier()


def hugging_face_model() -> nn.Module:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=3,
    )
    adapters = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    return peft.get_peft_model(transformers.BertForSequenceClassification(config), adapters)


MODELS = {"own": own_model, "hugging face": hugging_face_model}


def run(model: str, **options: object) -> Result:
    task = Supervised(
        MODELS[model](),
        SAMPLES,
        SAMPLES,
        clients=4,
        alpha=100.0,
        loss="model",
        training=LocalTraining(local_steps=3, batch_size=8, learning_rate=0.02, optimizer="adam"),
        seed=1,
    )
    return simulate(
        task, "fedpbc", UP, evaluate_every=3, progress=False, **{"engine": "serial", **options}
    )


def trained(module: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("model", MODELS)
def test_only_adapters_are_trained_and_sent(model: str) -> None:
    module = MODELS[model]()
    count = sum(p.numel() for p in trained(module).values())
    assert count < sum(p.numel() for p in module.parameters()) / 10
    result = run(model)
    assert result.layout.names == tuple(trained(module))
    assert result.cost["bytes_up"] == int(UP.sum()) * 4 * count
    assert result.cost["bytes_down"] == int(UP.sum()) * 4 * count
    assert all(len(vector) == count for vector in result.models.values())
    first, last = (metrics.views["reported"].test_loss for metrics in result.metrics)
    assert last < first


@pytest.mark.parametrize("model", MODELS)
def test_a_run_with_adapters_resumes_to_the_same_bits(model: str, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, metrics: object) -> None:
        if done == 4:
            raise Stop

    with pytest.raises(Stop):
        run(model, out=tmp_path / "run", on_round=stop)
    resumed, whole = run(model, out=tmp_path / "run"), run(model)
    assert all(torch.equal(resumed.models[view], whole.models[view]) for view in whole.models)
    # The final model is the adapters by name: they go into a module made in the same way.
    module = MODELS[model]()
    named = load_view(tmp_path / "run", "reported")
    assert list(named) == list(trained(module))
    assert not module.load_state_dict(named, strict=False).unexpected_keys
    module.eval()
    with torch.no_grad():
        logits = module(input_ids=IDS, attention_mask=MASK).logits
    accuracy = float((logits.argmax(1) == Y).double().mean())
    assert accuracy == resumed.accuracy("reported")


def test_no_file_of_a_run_has_the_frozen_base(tmp_path: Path) -> None:
    run("own", out=tmp_path / "run")
    base = sum(p.nbytes for p in own_model().parameters() if not p.requires_grad)
    adapters = sum(p.nbytes for p in trained(own_model()).values())
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "run").glob("*.safetensors")}
    assert sizes
    assert max(sizes.values()) < base
    assert sizes["final.safetensors"] < 5 * adapters + 4096


def test_a_module_that_is_frozen_as_a_whole_is_refused() -> None:
    module = own_model().requires_grad_(False)
    with pytest.raises(InputError, match="module has no parameters, but should have some to train"):
        Supervised(module, SAMPLES, SAMPLES, clients=4, loss="model")
