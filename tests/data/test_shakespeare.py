"""Shakespeare: the text in the package, the tool that makes it, and LEAF's in the hub's layout."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import fedpbc.data
from fedpbc.data import load
from fedpbc.data.shakespeare import LEAF_CHARACTERS, embedded_speakers
from fedpbc.errors import InputError

FOLDER = Path(fedpbc.data.__file__).parent / "embedded"
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT.parent / "shared" / "data" / "shakespeare.txt"


def tool():
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools" / "make_shakespeare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_embedded_text():
    texts = embedded_speakers()
    lengths = [len(text) for text in texts.values()]
    assert len(texts) == 99
    assert min(lengths) > 2000
    assert lengths == sorted(lengths, reverse=True)
    assert texts["First Citizen"].startswith(
        "Before we proceed any further, hear me speak.\nYou are"
    )
    assert (FOLDER / "shakespeare.npz").stat().st_size < 400_000
    assert "public domain" in (FOLDER / "LICENSE-shakespeare").read_text()


def test_windows_of_each_speaker_and_the_held_out_part():
    data, texts = load("shakespeare", length=50), embedded_speakers()
    assert data.client_names == tuple(texts)
    assert (data.next_token, data.vocabulary, len(data.classes)) == (True, 65, 65)
    text = texts["GLOUCESTER"]
    cut = len(text) - len(text) // 5
    for split, part in ((data.train, text[:cut]), (data.test, text[cut:])):
        own = split.clients == 0
        assert int(own.sum()) == (len(part) - 1) // 50
        decoded = "".join(data.classes[k] for k in split.inputs[own].ravel())
        following = "".join(data.classes[k] for k in split.labels[own].ravel())
        assert decoded == part[: len(decoded)]
        assert following == part[1 : len(decoded) + 1]
    # The space is the most frequent character of the held-out part.
    counts = np.bincount(data.test.labels.ravel())
    assert data.classes[counts.argmax()] == " "
    assert 0.15 < counts.max() / counts.sum() < 0.17


def test_windows_that_are_too_long():
    with pytest.raises(InputError, match=r"data\.length is 2000, but should be smaller: 'Third"):
        load("shakespeare", length=2000)
    with pytest.raises(InputError, match=r"data\.lenght is unknown: use length"):
        load("shakespeare", lenght=20)


def test_the_tool_on_a_small_play():
    long, longer = "a" * 2001, "b" * 1500
    text = f"ANN:\n{long}\n\nBEN:\n{longer}\n\n\nCY:\nshort\n\nBEN:\nand {longer}\n\nno heading"
    arrays = tool().make_shakespeare(text)
    assert arrays["speakers"].tolist() == ["BEN", "ANN"]
    assert arrays["ends"].tolist() == [3005, 5006]
    assert arrays["text"].tobytes().decode() == f"{longer}\nand {longer}{long}"


@pytest.mark.skipif(not SOURCE.is_file(), reason="the plays are not in ../shared/data")
def test_the_tool_makes_the_embedded_file():
    arrays = tool().make_shakespeare(SOURCE.read_text(encoding="ascii"))
    with np.load(FOLDER / "shakespeare.npz") as embedded:
        for name, array in arrays.items():
            np.testing.assert_array_equal(embedded[name], array)


def leaf_rows(roles=3, windows=600):
    """Overlapping windows of 80 characters, and the one after each, as LEAF cuts them."""
    rows = {"character_id": [], "x": [], "y": []}
    for role in range(roles):
        text = "".join(LEAF_CHARACTERS[1:][(k * (role + 3)) % 79] for k in range(windows + 80))
        for k in range(windows - 100 * role):
            rows["character_id"].append(f"PLAY_ROLE{role}")
            rows["x"].append(text[k : k + 80])
            rows["y"].append(text[k + 80])
    return rows


@pytest.mark.parametrize("kind", ["csv", "repository", "converted"])
def test_leafs_shakespeare_in_the_hubs_layouts(tmp_path, kind):
    rows = leaf_rows()
    if kind == "csv":
        pyarrow.csv.write_csv(pa.table(rows), tmp_path / "shakespeare.csv")
    elif kind == "repository":
        (tmp_path / "flwrlabs/shakespeare").mkdir(parents=True)
        pyarrow.csv.write_csv(pa.table(rows), tmp_path / "flwrlabs/shakespeare/shakespeare.csv")
    else:
        (tmp_path / "default/train").mkdir(parents=True)
        pq.write_table(pa.table(rows), tmp_path / "default/train/0000.parquet")
    data = load("shakespeare_full", tmp_path)
    assert data.client_names == ("PLAY_ROLE0", "PLAY_ROLE1", "PLAY_ROLE2")
    # 600, 500 and 400 windows: a fifth of each for testing, the 80 before it unused.
    assert np.bincount(data.test.clients).tolist() == [120, 100, 80]
    assert np.bincount(data.train.clients).tolist() == [400, 320, 240]
    first = "".join(data.classes[k] for k in data.train.inputs[0])
    assert first == rows["x"][0]
    assert [data.classes[k] for k in data.train.labels[:3]] == rows["y"][:3]
    # No test target is a training target, nor in a training window.
    last_train = "".join(data.classes[k] for k in data.train.inputs[399])
    first_test = "".join(data.classes[k] for k in data.test.inputs[0])
    assert last_train == rows["x"][399]
    assert first_test == rows["x"][480]
    assert len(LEAF_CHARACTERS) == data.vocabulary == 80


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("x", "short", "5 characters in row 7 of its column x; it should have 80"),
        ("y", "é", "'é' in row 7 of its column y; it should have only the 80 characters"),
    ],
)
def test_rows_that_are_not_leafs(tmp_path, column, value, words):
    rows = leaf_rows(roles=1)
    rows[column][7] = value
    pq.write_table(pa.table(rows), tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(InputError, match=words):
        load("shakespeare_full", tmp_path)


def test_missing_columns(tmp_path):
    pyarrow.csv.write_csv(pa.table({"text": ["a"]}), tmp_path / "shakespeare.csv")
    with pytest.raises(InputError, match=r"has the columns text; .*character_id, x and y"):
        load("shakespeare_full", tmp_path)
