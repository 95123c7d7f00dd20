import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest

import fedpbc.data
from fedpbc.data import load

FOLDER = Path(fedpbc.data.__file__).parent / "embedded"
TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_embedded_data.py"


def test_fashion():
    data = load("fashion")
    assert data.train.inputs.shape == (10_000, 28, 28, 1)
    assert data.test.inputs.shape == (2_000, 28, 28, 1)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert np.bincount(data.train.labels).tolist() == [1000] * 10
    assert np.bincount(data.test.labels).tolist() == [200] * 10
    # Fashion-MNIST begins with an ankle boot, in training and in test.
    assert [data.classes[s.labels[0]] for s in (data.train, data.test)] == ["Ankle boot"] * 2
    # The whole set's mean is 72.94, its deviation 90.02.
    mean, deviation = fedpbc.data.channel_statistics(data.train.inputs)
    assert mean[0] == pytest.approx(72.94, abs=1)
    assert deviation[0] == pytest.approx(90.02, abs=1)


def test_digits():
    data = load("digits")
    assert data.train.inputs.shape == (1437, 8, 8, 1)
    assert data.test.inputs.shape == (360, 8, 8, 1)
    assert data.train.inputs.max() == data.test.inputs.max() == 16
    together = np.bincount(data.train.labels) + np.bincount(data.test.labels)
    assert together.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert set(np.bincount(data.test.labels)) <= {35, 36, 37}


@pytest.mark.parametrize("name", ["fashion", "digits"])
def test_train_and_test_share_no_picture_and_are_not_blank(name):
    data = load(name)
    train, test = ({picture.tobytes() for picture in s.inputs} for s in (data.train, data.test))
    assert not train & test
    assert all(any(picture) for picture in train | test)


def test_size_licences_and_time():
    assert (FOLDER / "fashion.npz").stat().st_size <= 6_000_000
    assert "Zalando SE" in (FOLDER / "LICENSE-fashion-mnist").read_text()
    digits = (FOLDER / "LICENSE-digits").read_text()
    assert "BSD 3-Clause" in digits
    assert "CC BY 4.0" in digits
    started = time.process_time()
    load("fashion")
    assert time.process_time() - started < 1


def idx(array):
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.tobytes()


def test_the_tool_picks_the_first_of_each_class_and_repeats_itself(tmp_path):
    spec = importlib.util.spec_from_file_location("make_embedded_data", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    random = np.random.default_rng(1)
    for prefix, count in (("train", 11_000), ("t10k", 2_500)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        inputs = random.integers(0, 256, (count, 2, 2), dtype=np.uint8)
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx(inputs))
    arrays = tool.make_fashion(tmp_path)
    assert arrays["train_inputs"].shape == (10_000, 2, 2, 1)
    np.testing.assert_array_equal(arrays["test_inputs"][..., 0], inputs[:2_000])
    np.testing.assert_array_equal(arrays["test_labels"], labels[:2_000])
    written = []
    for name in ("a.npz", "b.npz"):
        tool.write(tmp_path / name, arrays)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
