from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedpbc.algorithms import ALGORITHMS, find_algorithm
from fedpbc.paper.result_table import ResultTable, TableEntry, rank_algorithms


def test_best_and_second_best_are_among_those_without_memory():
    values = {"fedpbc": 66.3, "fedavg": 58.7, "fedau": 65.9, "fedavg_known": 68.0, "mifa": 70.1}
    assert rank_algorithms(values) == {"fedpbc": 1, "fedau": 2}


def test_equal_values_share_a_rank():
    assert rank_algorithms({"fedpbc": 3.0, "fedavg": 2.0, "fedau": 2.0, "f3ast": 1.0}) == {
        "fedpbc": 1,
        "fedavg": 2,
        "fedau": 2,
    }


@given(st.dictionaries(st.sampled_from(sorted(ALGORITHMS)), st.floats(0, 1), min_size=1))
def test_there_is_a_best_wherever_there_is_one_without_memory(values):
    unaided = {n: v for n, v in values.items() if not find_algorithm(n).memory_aided}
    ranks = rank_algorithms(values)
    assert {n for n, rank in ranks.items() if rank == 1} == {
        n for n, v in unaided.items() if v == max(unaided.values())
    }
    assert set(ranks) <= set(unaided)


TABLE = ResultTable(
    "accuracy, %",
    ["links", "algorithm", "test %"],
    [
        ["a", "fedpbc", TableEntry("66.3", 1)],
        ["a", "fedau", TableEntry("65.9", 2)],
        ["b", "mifa†", "70.1"],
    ],
    ["a note."],
)


def test_a_table_marks_them_in_markdown_and_in_a_terminal():
    assert TABLE.markdown().splitlines() == [
        "### accuracy, %",
        "",
        "| links | algorithm | test % |",
        "| --- | --- | --- |",
        "| a | fedpbc | **66.3** ¹ |",
        "| a | fedau | <u>65.9</u> ² |",
        "| b | mifa† | 70.1 |",
        "",
        "- a note.",
    ]
    lines = [" ".join(line.split()) for line in TABLE.terminal().splitlines()]
    assert lines[0] == "accuracy, %"
    assert "a fedpbc 66.3 ¹" in lines
    assert "a fedau 65.9 ²" in lines
    assert "b mifa† 70.1" in lines
    assert lines[-1] == "a note."
