from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Annotated

import numpy as np
import pytest
from annotated_types import Ge, Le

from fedpbc.errors import InputError
from fedpbc.links import SCHEMES, Row, Setting, Timetable, find_scheme, link_scheme


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(SCHEMES)
    yield
    SCHEMES.clear()
    SCHEMES.update(before)


def test_every_scheme_of_the_specification_is_there() -> None:
    assert set(SCHEMES) == {
        *("bernoulli", "bernoulli_varying", "markov", "markov_varying", "cyclic", "cyclic_reset"),
        *("trace", "table", "always"),
        *("staircase", "interleaved_sine", "label_cyclic", "by_volume", "group"),
    }


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_summary_is_one_sentence(name: str) -> None:
    assert SCHEMES[name].name == name
    assert SCHEMES[name].summary.endswith(".")
    assert len(SCHEMES[name].summary) < 90


def test_options_are_read_off_the_signature() -> None:
    assert {o.name: o.default for o in SCHEMES["bernoulli_varying"].options.values()} == {
        "gamma": 0.4,
        "period": 40.0,
    }
    assert SCHEMES["table"].options["file"].required
    assert SCHEMES["bernoulli"].options == {}


def test_a_plugin_scheme() -> None:
    @link_scheme
    def firsts(setting: Setting, *, count: Annotated[int, Ge(0), Le(9)] = 1) -> Iterator[Row]:
        """Only the first few clients.

        More words.
        """
        for _ in range(setting.rounds):
            yield np.arange(setting.clients) < count

    assert SCHEMES["firsts"].summary == "Only the first few clients."
    assert SCHEMES["firsts"].rows is firsts
    setting = Setting(seed=1, clients=4, rounds=3)
    assert Timetable.draw("firsts", setting).active(2).tolist() == [0]
    assert Timetable.draw("firsts", setting, {"count": 2}).active(0).tolist() == [0, 1]
    with pytest.raises(InputError, match=r"links.count is 10, but should be at most"):
        Timetable.draw("firsts", setting, {"count": 10})


def test_a_name_cannot_be_registered_twice() -> None:
    def bernoulli(setting: Setting) -> Iterator[Row]:
        yield np.ones(setting.clients, dtype=bool)

    with pytest.raises(InputError, match=r"'bernoulli', but should be a new name: fedpbc\.links\."):
        link_scheme(bernoulli)
    assert SCHEMES["bernoulli"].rows is not bernoulli


def test_a_module_can_be_imported_again() -> None:
    # As after a reload: another function with the same origin.
    before = SCHEMES["always"].rows
    again = FunctionType(before.__code__, before.__globals__, "always")
    again.__module__, again.__qualname__ = before.__module__, before.__qualname__
    assert link_scheme(again) is again
    assert SCHEMES["always"].rows is again


def test_a_scheme_takes_a_setting_and_keyword_only_options() -> None:
    def positional(setting: Setting, gamma: float = 0.4) -> Iterator[Row]:
        yield np.ones(setting.clients, dtype=bool)

    def nothing() -> Iterator[Row]:
        yield np.ones(1, dtype=bool)

    def anything(setting: Setting, **options: float) -> Iterator[Row]:
        yield np.ones(setting.clients, dtype=bool)

    for function in (positional, nothing, anything):
        with pytest.raises(InputError, match=r"\w+\(setting, \*, option=default") as caught:
            link_scheme(function)
        assert function.__name__ not in SCHEMES
        named = "has the positional option gamma, but options are keyword-only" in str(caught.value)
        assert named == (function is positional)


def test_an_unknown_name() -> None:
    with pytest.raises(InputError) as caught:
        find_scheme("markof", option="downlink")
    assert str(caught.value).startswith("downlink is 'markof', but should be one of ")
    assert str(caught.value).endswith("did you mean 'markov'?")
    for name in SCHEMES:
        assert name in str(caught.value)


def test_schemes_that_use_p_need_it() -> None:
    setting = Setting(seed=1, clients=2, rounds=3, option="downlink")
    with pytest.raises(InputError) as caught:
        Timetable.draw("bernoulli", setting)
    assert str(caught.value) == (
        "downlink.p is missing: set it, since this task has no classes to derive probabilities from"
    )


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([0.5], "links.p has shape (1,), but should be one number for each of the 2"),
        ([[0.5, 0.5]], "shape (1, 2)"),
        ([0.5, 1.1], "links.p is 1.1, but should be from 0 to 1 for each client, also client 1"),
        ([-0.1, 0.5], "links.p is -0.1"),
        ([np.nan, 0.5], "links.p is nan"),
    ],
)
def test_wrong_probabilities(p: list[float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Setting(seed=1, clients=2, rounds=1, base_probabilities=np.array(p))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"class_shares": [0.5, 0.5]},
            "class_shares has shape (2,), but should have one row of shares for each of the 2",
        ),
        ({"class_shares": [[1.0]]}, "class_shares has shape (1, 1)"),
        ({"class_shares": [[], []]}, "class_shares has shape (2, 0)"),
        ({"class_shares": [[1.0], [-1.0]]}, "class_shares is -1.0, but should be at least 0"),
        ({"samples": [1, 2, 3]}, "samples has shape (3,), but should have one number for each"),
        ({"samples": [5, -1]}, "samples is -1.0, but should be at least 0 for each client"),
        ({"samples": [5, np.nan]}, "samples is not finite everywhere"),
        ({"samples": ["a", "b"]}, "samples is of type <U1, but should be an array of numbers"),
    ],
)
def test_wrong_data(data: dict[str, list[float]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Setting(seed=1, clients=2, rounds=1, **data)
    assert str(caught.value).startswith(message)


def test_which_schemes_read_what_the_clients_hold() -> None:
    needs_data = {name for name, scheme in SCHEMES.items() if scheme.needs_data({})}
    assert needs_data == {"label_cyclic", "by_volume"}
    assert SCHEMES["group"].needs_data({"assign": "class"})
    assert not SCHEMES["group"].needs_data({"assign": ["class"]})


def test_draws_for_several_purposes() -> None:
    setting = Setting(seed=1, clients=5, rounds=1)
    assert setting.uniform(3, "away").tolist() != setting.uniform(3).tolist()
    generator = setting.generator("away", 3)
    assert setting.uniform(3, "away").tolist() == generator.random(5).tolist()


def test_clients_and_rounds_are_positive() -> None:
    with pytest.raises(InputError, match="clients is 0"):
        Setting(seed=1, clients=0, rounds=5)
    with pytest.raises(InputError, match="rounds is 0"):
        Setting(seed=1, clients=5, rounds=0)


def test_the_callers_array_stays_writable() -> None:
    p = np.array([0.25, 0.75])
    setting = Setting(seed=1, clients=2, rounds=1, base_probabilities=p)
    with pytest.raises(ValueError, match="read-only"):
        setting.p[0] = 1
    p[0] = 0.5
    assert p.tolist() == [0.5, 0.75]


def test_draws_are_keyed_by_everything() -> None:
    def numbers(seed: int = 1, stream: str = "uplink", t: int = 0) -> list[float]:
        return Setting(seed, clients=4, rounds=9, stream=stream).uniform(t).tolist()

    assert numbers() == numbers()
    others = [numbers(seed=2), numbers(stream="downlink"), numbers(t=1)]
    assert numbers() not in others
    assert all(0 <= number < 1 for row in others for number in row)

    setting = Setting(seed=1, clients=4, rounds=9)
    draws = [
        setting.generator(purpose, first, second).random()
        for purpose, first, second in [("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1)]
    ]
    assert len(set(draws)) == 4
