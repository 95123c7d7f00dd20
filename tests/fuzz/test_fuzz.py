"""The short part of the fuzzer; ``make fuzz`` is the long one."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.fuzz.campaign import shares
from tests.fuzz.kinds import KINDS
from tests.fuzz.worker import Worker

SEED, CASES, DAMAGES = 10, 24, 12


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_few_cases_of_each_kind():
    """One test of all kinds: they share the folders that they damage, which take long to make."""
    problems = []
    # It imports everything once; a busy machine has its time.
    with closing(Worker(patience=200)) as worker:
        for kind, share in shares(CASES, DAMAGES, None).items():
            for number in range(max(1, share)):
                verdict = worker.run(kind, SEED, number)
                if verdict.problems:
                    repeat = f"python -m tests.fuzz --seed {SEED} --case {kind}-{number}"
                    problems.append(f"{repeat}\n{verdict.about}\n{verdict.output}")
    assert problems == []


def test_a_case_is_the_same_each_time(tmp_path):
    from random import Random

    from tests.fuzz.place import Place

    made = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        place = Place(folder, tmp_path / "templates")
        place.prepare()
        case = KINDS["traces"].make(Random("1/traces/5"), place)
        made.append((case.steps, (place.work / "links.csv").read_bytes()))
    assert made[0] == made[1]


def test_every_link_scheme_and_its_options_are_tried():
    from fedpbc.links import SCHEMES
    from tests.fuzz.commands import right_values, setting_keys

    assert {*right_values("--links"), "table", "trace"} == set(SCHEMES)
    assert right_values("--downlink") == right_values("--links")
    for scheme in SCHEMES.values():
        for section in ("links", "downlink"):
            assert {f"{section}.{option}" for option in scheme.options} <= set(setting_keys())
