"""Any data set by the names of its columns."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedpbc.data import load
from fedpbc.errors import InputError
from fedpbc.experiments.build import build_task
from fedpbc.experiments.configuration import Config
from tests.commandline import ran

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def encoded(picture):
    file = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def write(file, **columns):
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if file.suffix == ".csv":
        pyarrow.csv.write_csv(table, file)
    else:
        pq.write_table(table, file)
    return file


def pictures(count, shape=(5, 4, 3)):
    random = np.random.default_rng(1)
    return random.integers(0, 256, (count, *shape), dtype=np.uint8)


def test_pictures_of_any_repository_by_writer(tmp_path):
    images = pictures(12)
    column = pa.array([encoded(picture) for picture in images], type=IMAGE)
    folder = tmp_path / "owner/name/data"
    writers = ["x"] * 5 + ["y"] * 7
    write(folder / "train-00000-of-00001.parquet", pic=column, kind=[*range(3)] * 4, who=writers)
    data = load("hub:owner/name", tmp_path, input="pic", target="kind", client="who")
    assert data.name == "hub:owner/name"
    assert data.client_names == ("y", "x")
    assert data.classes == ("0", "1", "2")
    assert data.train.inputs.shape == (10, 5, 4, 3)
    assert np.bincount(data.test.clients).tolist() == [1, 1]


def test_grey_pictures_with_a_test_split_and_names_of_classes(tmp_path):
    images = pictures(6, (4, 4, 1))
    column = pa.array([encoded(picture) for picture in images], type=IMAGE)
    for split in ("train", "test"):
        names = ["cat", "dog", "cat", "ant", "dog", "ant"]
        write(tmp_path / f"{split}-00000-of-00001.parquet", image=column, label=names)
    data = load("table", tmp_path, input="image", target="label")
    assert data.classes == ("ant", "cat", "dog")
    assert data.train.labels.tolist() == [1, 2, 1, 0, 2, 0]
    np.testing.assert_array_equal(data.test.inputs, images)
    assert data.train.clients is None


def test_numbers_are_standardised_with_the_training_samples(tmp_path):
    file = write(
        tmp_path / "rows.csv",
        age=[float(k) for k in range(10)],
        height=[2] * 10,
        label=[0, 1] * 5,
    )
    data = load("table", file, input="age,height", target="label")
    assert data.train.inputs.shape == (8, 2)
    assert data.train.inputs.dtype == np.float32
    np.testing.assert_allclose(data.train.inputs.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(data.train.inputs.std(axis=0), [1, 0], atol=1e-6)
    assert len(data.test.labels) == 2


def test_lists_of_numbers_and_a_numeric_target(tmp_path):
    rows = [[float(k), 1.0, -2.0 * k] for k in range(10)]
    file = write(tmp_path / "d.parquet", x=rows, y=[k / 2 for k in range(10)])
    data = load("table", file, input="x", target="y")
    assert data.classes == ()
    assert data.train.inputs.shape == (8, 3)
    assert data.train.labels.dtype == np.float64
    assert data.train.labels.shape == (8, 1)


def test_integers_as_numbers_and_several_targets(tmp_path):
    file = write(
        tmp_path / "d.parquet",
        x=[k / 2 for k in range(10)],
        y=[-13, 5, 0, 7, 2] * 2,
        red=[True, False] * 5,
        blue=[0, 1, 1, 0, 1] * 2,
    )
    data = load("table", file, input="x", target="y", target_kind="numbers")
    assert data.classes == ()
    assert set(data.train.labels[:, 0]) <= {-13.0, 5.0, 0.0, 7.0, 2.0}
    data = load("table", file, input="x", target="red,blue")
    assert data.classes == ()
    assert data.train.labels.shape == (8, 2)
    assert set(data.train.labels.flatten()) == {0.0, 1.0}
    # What the loss needs is known where there is one.
    short = ["--data", "table", "--data-dir", file, "--set", "data.input=x", "--clients", 2]
    short += ["--rounds", 2, "--set", "links.p=0.9", "--json", "--out"]
    numbers = ["--set", "data.target=y", "--set", "task.loss=huber"]
    ended = json.loads(ran("run", *numbers, *short, tmp_path / "numbers").out)
    assert {"mae", "rmse"} <= ended["views"]["server"].keys()
    labels = ["--set", "data.target=red,blue", "--set", "task.loss=binary_cross_entropy"]
    ended = json.loads(ran("run", *labels, *short, tmp_path / "labels").out)
    assert {"subset_accuracy", "macro_f1"} <= ended["views"]["server"].keys()


def test_texts_with_classes(tmp_path):
    texts = ["abc", "b", "", "cabab", "a" * 9] * 2
    file = write(tmp_path / "t.parquet", text=texts, label=[True, False] * 5)
    data = load("table", file, input="text", target="label", length=4)
    assert data.vocabulary == 5  # Nothing, a, b, c and any other.
    samples = {tuple(row) for split in (data.train, data.test) for row in split.inputs.tolist()}
    assert samples == {(0, 1, 2, 3), (0, 0, 0, 2), (0, 0, 0, 0), (1, 2, 1, 2), (1, 1, 1, 1)}
    assert data.classes == ("0", "1")


def test_the_next_character_of_clients_texts(tmp_path):
    who = ["ann", "ben", "ann"]
    file = write(tmp_path / "t.parquet", text=["abcde" * 3, "xy" * 40, "fgh" * 4], who=who)
    data = load("table", file, input="text", client="who", length=3)
    assert data.next_token
    assert data.client_names == ("ben", "ann")
    own = data.train.inputs[data.train.clients == 1]
    assert "".join(data.classes[k] for k in own[0]) == "abc"
    assert "".join(data.classes[k] for k in data.train.labels[data.train.clients == 1][0]) == "bcd"


def test_texts_are_for_networks_that_take_texts(tmp_path):
    table = {"text": ["abcde" * 9, "xy" * 40], "who": ["ann", "ben"]}
    options = {"name": "table", "dir": str(write(tmp_path / "t.parquet", **table)), "length": 3}
    given = {"data": {**options, "input": "text", "client": "who"}}
    assert Config.from_dict(given).model.name == "lstm"
    with pytest.raises(InputError, match="model is 'mlp', but should be lstm or transformer"):
        build_task(Config.from_dict({**given, "model": {"name": "mlp"}}))


def test_the_next_character_with_a_test_split(tmp_path):
    write(tmp_path / "train.parquet", text=["abab" * 5, "cdcd" * 4], who=["ann", "ben"])
    write(tmp_path / "test.parquet", text=["ba" * 6, "zz" * 9], who=["ann", "zoe"])
    data = load("table", tmp_path, input="text", client="who", length=4)
    assert data.client_names == ("ann", "ben")
    # Nothing of the texts for training is held out, and nobody is tested who has none.
    assert len(data.train.inputs) == len(data.train.clients) == 4 + 3
    assert data.test.clients.tolist() == [0, 0]
    assert "".join(data.classes[k] for k in data.test.inputs[0]) == "baba"
    write(tmp_path / "test.parquet", text=["ba"], who=["ann"])
    with pytest.raises(InputError, match=r"no client of table's test split has training texts"):
        load("table", tmp_path, input="text", client="who", length=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"data\.input is missing"),
        ({"input": "x"}, r"data\.target is missing.*only texts have a next character"),
        ({"input": "t"}, r"data\.client is missing"),
        ({"input": "z", "target": "y"}, r"has the columns x, y, t, n; .* the columns z, y"),
        ({"input": "x", "target": "n"}, r"label -1 in row 3 of n; .* labels from 0 to 1"),
        ({"input": "x", "target": "y", "inptu": 3}, r"data\.inptu is unknown"),
        ({"input": "x", "target": "y", "length": 0}, r"data\.length is 0"),
        ({"input": "x", "target": "y", "client": "y"}, r"fewer than five rows of each client"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, options, words):
    file = write(
        tmp_path / "d.parquet",
        x=[0.0, 1.0, 2.0, 3.0, 4.0],
        y=[0, 1, 0, 1, 2],
        t=["a", "b", "c", "d", "e"],
        n=[0, 1, 1, -1, 0],
    )
    with pytest.raises(InputError, match=words) as caught:
        load("table", file, **options)
    assert "\n" not in str(caught.value)


def test_wrong_values_are_one_line(tmp_path):
    good = {"x": [1.0] * 5, "y": [0] * 5}
    for name, column, words in (
        ("x", pa.array([1.0, None, 1.0, 1.0, 1.0]), "no x in row 1"),
        ("x", pa.array([1.0, float("nan"), 1.0, 1.0, 1.0]), "row 1 of x that is not finite"),
        ("x", pa.array([[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]]), "lists of several lengths"),
        ("x", pa.array([{"a": 1}] * 5), "pictures, texts or numbers"),
    ):
        file = write(tmp_path / "d.parquet", **(good | {name: column}))
        with pytest.raises(InputError, match=words):
            load("table", file, input="x", target="y")


def test_labels_and_clients_of_the_test_split(tmp_path):
    write(tmp_path / "train-00000-of-00001.parquet", x=[1.0, 2.0], y=[0, 1], who=["a", "b"])
    test = tmp_path / "test-00000-of-00001.parquet"
    write(test, x=[1.0, 2.0], y=[0, 2], who=["a", "c"])
    with pytest.raises(InputError, match=r"label 2 in row 1 of y; .* labels from 0 to 1"):
        load("table", tmp_path, input="x", target="y")
    write(test, x=[1.0, 2.0], y=[0, 1], who=["a", "c"])
    data = load("table", tmp_path, input="x", target="y", client="who")
    # c has no training samples, so that nothing is tested on it.
    assert data.test.clients.tolist() == [0]
    write(test, x=[1.0, 2.0], y=[0, 1], who=["c", "c"])
    with pytest.raises(InputError, match="no client of table's test split has training samples"):
        load("table", tmp_path, input="x", target="y", client="who")


def test_what_the_hub_cannot_have(tmp_path):
    for name in ("hub:", "hub:owner", "hub:a/b/c", "hub:../b"):
        with pytest.raises(InputError, match="hub:OWNER/NAME"):
            load(name, tmp_path, input="x", target="y")
    with pytest.raises(InputError, match=r"data\.dir is missing"):
        load("table", input="x", target="y")
    with pytest.raises(InputError, match="has no train files"):
        load("hub:owner/name", tmp_path, input="x", target="y")


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    outside = write(tmp_path / "outside.parquet", x=[1.0] * 5, y=[0] * 5)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "d.parquet").symlink_to(outside)
    with pytest.raises(InputError, match="a link out of the folder"):
        load("table", folder, input="x", target="y")
