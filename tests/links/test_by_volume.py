from __future__ import annotations

import numpy as np
import pytest

from fedpbc.errors import InputError
from fedpbc.links import SCHEMES, Setting, Timetable
from tests.links.drawing import dense, probabilities, within_error


def table(samples: object, rounds: int, **options: object) -> Timetable:
    samples = np.asarray(samples)
    return Timetable.draw("by_volume", Setting(1, len(samples), rounds, samples=samples), options)


def of(samples: object, **options: object) -> list[float]:
    """The probability of each client."""
    rows = probabilities(table(samples, 3, **options))
    assert (rows == rows[0]).all()
    return rows[0].tolist()


def test_probabilities_by_hand() -> None:
    samples = [400, 100, 25, 4]
    assert of(samples) == [1.0, 0.5, 0.25, 0.1]
    assert of(samples, favours="small") == [0.1, 0.2, 0.4, 1.0]
    assert of(samples, exponent=1.0) == [1.0, 0.25, 0.0625, 0.01]
    assert of(samples, exponent=2, favours="small") == pytest.approx([1e-4, 0.0016, 0.0256, 1.0])
    assert of(samples, highest=0.5) == [0.5, 0.25, 0.125, 0.05]


def test_nothing_differs_with_an_exponent_of_0_or_equal_volumes() -> None:
    for favours in ("large", "small"):
        assert of([7, 1, 1000], exponent=0, favours=favours) == [1.0] * 3
        assert of([6, 6, 6], highest=0.3, favours=favours) == [0.3] * 3


def test_clients_without_samples_are_never_up() -> None:
    for exponent in (0.0, 0.5):
        for favours in ("large", "small"):
            p = of([0, 9, 9], favours=favours, exponent=exponent)
            assert p == [0.0, 1.0, 1.0]
    # The fewest samples are those of a client that has some.
    assert of([0, 4, 16], favours="small") == [0.0, 1.0, 0.5]
    assert of([0, 0]) == of([0, 0], favours="small") == [0.0, 0.0]


def test_rates() -> None:
    samples = np.geomspace(10, 10_000, 60).astype(int)
    for favours in ("large", "small"):
        drawn = table(samples, 4000, favours=favours)
        assert within_error(drawn.shares(), next(drawn.probabilities()), 4000)
    assert SCHEMES["by_volume"].independent


def test_equal_volumes_are_bernoulli() -> None:
    setting = Setting(1, 50, 60, np.full(50, 0.4), samples=np.full(50, 8))
    drawn = dense(Timetable.draw("by_volume", setting, {"highest": 0.4}))
    assert (drawn == dense(Timetable.draw("bernoulli", setting))).all()


def test_it_needs_sample_counts() -> None:
    with pytest.raises(InputError) as caught:
        Timetable.draw("by_volume", Setting(1, 2, 3, np.array([0.5, 0.5])))
    assert str(caught.value) == (
        "links is 'by_volume', but should be a scheme that needs no sample counts: "
        "this task has none, and links.p cannot replace them"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"favours": "medium"}, "links.favours is 'medium', but should be 'large' or 'small'"),
        ({"exponent": -1}, "links.exponent is -1, but should be at least 0"),
        ({"exponent": 1000}, "links.exponent is 1000, but should be at most 100"),
        ({"highest": 1.1}, "links.highest is 1.1, but should be at most 1"),
        ({"beta": 1}, "links.beta is unknown: use one of favours, exponent, highest"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        table([1, 2], 5, **options)
    assert str(caught.value).startswith(message)
