"""What is counted as moved between the nodes of a cluster, without one."""

from __future__ import annotations

from fedpbc.engines.ray_traffic import INLINE_BYTES, StoredObject, Traffic

MODEL = 2 * INLINE_BYTES


def stored(size: int = MODEL, result_of: str | None = None) -> StoredObject:
    copies = {"here"} if result_of is None else {"here", result_of}
    return StoredObject(None, size, copies, result_of)


def test_data_and_a_start_model_go_to_a_node_once():
    traffic, data, start = Traffic("here"), stored(10**6), stored()
    for node in ("here", "a", "b", "a", "b", "here"):
        traffic.count_segment(3, node, data, [start], MODEL)
    assert (traffic.data, traffic.out, traffic.back) == (2 * 10**6, 2 * MODEL, 4 * MODEL)
    assert traffic.segments == {"here": 2, "a": 2, "b": 2}


def test_a_result_is_on_its_node():
    traffic, data, result = Traffic("here"), stored(10), stored(result_of="a")
    traffic.count_segment(0, "a", data, [result], MODEL)
    assert traffic.out == 0
    traffic.count_segment(0, "b", data, [result], MODEL)
    assert traffic.out == MODEL


def test_a_small_result_goes_along_with_every_segment():
    traffic, data, result = Traffic("here"), stored(10), stored(80, result_of="a")
    for _ in range(3):
        traffic.count_segment(0, "a", data, [result], 80)
    assert traffic.out == 3 * 80


def test_on_one_node_nothing_is_moved():
    traffic, data = Traffic("here"), stored(10)
    for due in (4, 9):
        traffic.count_segment(due, "here", data, [stored()], MODEL)
    counts = traffic.as_dict()
    assert counts["segments"] == 2
    assert not any(value for key, value in counts.items() if key != "segments")


def test_rounds():
    traffic, data = Traffic("here"), stored(10)
    assert traffic.as_dict()["bytes_per_round"] == 0
    for due in (4, 4, 9):
        traffic.count_segment(due, "a", data, [], 60)
    counts = traffic.as_dict()
    # The mean is over rounds 4 to 9, in most of which nothing was due.
    assert (counts["bytes_per_round"], counts["bytes_largest_round"]) == (30, 120)
