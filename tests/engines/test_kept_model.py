"""A client that uploads something else than its model still has it, on every engine."""

from __future__ import annotations

import pytest
import torch

from fedpbc.algorithms import ALGORITHMS, ServerInit
from fedpbc.engines import SerialEngine
from fedpbc.engines.segment import Segment, Trained
from tests import small_runs as small


def a_segment(task, name, **options):
    rule = ALGORITHMS[name](ServerInit(task.init(), task.clients), **options).client_rule()
    start = task.init() + 1
    return Segment(2, start, 3, 1, 6, rule=rule, state=rule.initial_state(start))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "options"), [("area", {}), ("mifa", {"memory": "client"})])
def test_the_model_after_plain_steps_is_kept(engine, name, options):
    task = small.quadratic()
    made, segment = engine(task), a_segment(task, name, **options)
    made.submit(segment)
    trained = made.result(2)
    assert set(trained.upload) == {"change"}
    expected = task.local_steps(2, segment.start, 3, 6, None)
    assert (trained.kept_model - expected).abs().max() < 1e-12
    assert set(segment.outputs) == set(trained.vectors)


def test_not_if_it_is_uploaded_or_thrown_away(engine):
    task = small.quadratic()
    made = engine(task)
    for name in ("ca_fed", "focus"):
        segment = a_segment(task, name)
        made.submit(segment)
        assert made.result(2).kept_model is None
        assert "kept model" not in segment.outputs


def test_the_vectors_of_a_result_are_all_of_it():
    segment = a_segment(small.quadratic(), "area")
    one, two, three = (torch.full((4,), float(k)) for k in range(3))
    trained = Trained(segment, {"change": one}, {"delivered": two}, three)
    copy = Trained.from_vectors(segment, trained.vectors)
    assert (copy.upload, copy.state) == ({"change": one}, {"delivered": two})
    assert copy.kept_model is three


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "options"), [("area", {}), ("mifa", {"memory": "client"}), ("focus", {})]
)
def test_lost_answers_are_the_same_on_every_engine(engine, name, options):
    task, links = small.quadratic(), {"up": small.random_table(), "down": small.lossy()}
    views = small.views(task, name, engine=engine, options=options, **links)
    expected = small.views(task, name, engine=SerialEngine, options=options, **links)
    for view, model in expected.items():
        assert (views[view] - model).abs().max() < 1e-12, view


def test_a_client_that_misses_the_answer_trains_on_from_its_own_model():
    """Client 0 moves from 0 to 4, does not hear that x is 2, and goes on to 6: x = 2 + 2/2."""
    task = small.quadratic(2, 1, local_steps=1, learning_rate=0.5, decay=False)
    task.targets = torch.tensor([[8.0], [16.0]], dtype=torch.float64)
    up, down = small.table([{0}, {0}], 2), small.table([{1}, {0, 1}], 2)
    assert small.views(task, "area", up, down=down)["server"].item() == 3.0
    # FOCUS starts from 0 again, where its gradient is still −8: x = 4 + 8/2.
    assert small.views(task, "focus", up, down=down)["server"].item() == 8.0
