import importlib.util
import io
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedpbc.data import SOURCES, DataSet, Split, load
from fedpbc.errors import FedpbcError, InputError, MissingExtraError

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
HUB = [
    name
    for name, source in SOURCES.items()
    if source.repository and source.splits == ("train", "test") and source.function is None
]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def pictures(name, count, seed=0):
    return np.random.default_rng(seed).integers(
        0, 256, (count, *SOURCES[name].shape), dtype=np.uint8
    )


def encoded(picture):
    file = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(file, "PNG")
    return file.getvalue()


def write(file, name, inputs, labels, column=None, kind=IMAGE, label_type=None):
    rows = [{"bytes": x if x is None or isinstance(x, bytes) else encoded(x)} for x in inputs]
    values = pa.array(rows, type=kind) if kind == IMAGE else pa.array([0] * len(rows), type=kind)
    columns = {column or SOURCES[name].column: values, "label": pa.array(labels, type=label_type)}
    file.parent.mkdir(parents=True, exist_ok=True)
    # Row groups smaller than a file, as on the hub.
    pq.write_table(pa.table(columns), file, row_group_size=7)


def write_data_set(folder, name):
    """A small data set in the hub's layout: 20 training pictures in two files, 6 test pictures."""
    train, test = pictures(name, 20), pictures(name, 6, seed=1)
    labels = np.arange(20) % 10
    write(folder / "train-00000-of-00002.parquet", name, train[:11], labels[:11])
    write(folder / "train-00001-of-00002.parquet", name, train[11:], labels[11:])
    write(folder / "test-00000-of-00001.parquet", name, test, labels[:6])
    # What lies beside it on the hub must not be taken for it.
    for other in ("extra", "validation"):
        write(folder / f"{other}-00000-of-00001.parquet", name, train[:2], [0, 0])
    return train, test, labels


def layout(name, kind):
    source = SOURCES[name]
    return {
        "hub": f"{source.repository}/{source.config}",
        "repository": source.config,
        "files": ".",
    }[kind]


@pytest.mark.parametrize("name", HUB)
@pytest.mark.parametrize("kind", ["hub", "repository", "files"])
def test_a_folder_of_parquet_files(tmp_path, name, kind):
    train, test, labels = write_data_set(tmp_path / layout(name, kind), name)
    data = load(name, str(tmp_path))
    np.testing.assert_array_equal(data.train.inputs, train)
    np.testing.assert_array_equal(data.train.labels, labels)
    np.testing.assert_array_equal(data.test.inputs, test)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    assert (data.name, len(data.classes)) == (name, 10)
    assert (data.crop_padding, data.flip) == (SOURCES[name].crop_padding, SOURCES[name].flip)


def test_more_rows_than_are_decoded_at_once(tmp_path):
    inputs, labels = pictures("mnist", 1203), np.arange(1203) % 10
    for split in ("train", "test"):
        write(tmp_path / f"{split}-00000-of-00001.parquet", "mnist", inputs, labels)
    data = load("mnist", tmp_path)
    np.testing.assert_array_equal(data.train.inputs, inputs)
    np.testing.assert_array_equal(data.train.labels, labels)


def test_the_papers_augmentation():
    assert {n: (s.crop_padding, s.flip) for n, s in SOURCES.items() if s.crop_padding} == {
        "cifar10": (4, True),
        "svhn": (4, False),
        "cinic10": (4, True),
        "tiny_imagenet": (4, True),
    }


@pytest.mark.parametrize("name", HUB)
def test_from_the_hub(tmp_path, monkeypatch, name):
    source = SOURCES[name]
    train, _, _ = write_data_set(tmp_path / source.config, name)
    requested = {}

    def snapshot_download(repo_id, **options):
        requested.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    np.testing.assert_array_equal(load(name).train.inputs, train)
    assert requested == {
        "repo_id": source.repository,
        "repo_type": "dataset",
        "allow_patterns": [f"{source.config}/train-*.parquet", f"{source.config}/test-*.parquet"],
    }


@pytest.mark.parametrize("error", [OSError("no route\nto host"), RuntimeError(), ValueError("x")])
def test_no_network(monkeypatch, error):
    def snapshot_download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(FedpbcError, match=r"cifar10 cannot be downloaded .*--data-dir") as caught:
        load("cifar10")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("module", ["pyarrow", "pyarrow.parquet", "PIL", "PIL.Image"])
def test_reading_without_the_extra(tmp_path, monkeypatch, module):
    write_data_set(tmp_path, "svhn")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"reading Parquet files .*fedpbc\[hub\]"):
        load("svhn", tmp_path)


def test_downloading_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"downloading svhn .*fedpbc\[hub\]"):
        load("svhn")


def test_unknown_name():
    with pytest.raises(
        InputError, match=r"data\.name is 'cifar', .*fashion, .*did you mean 'cifar10'"
    ):
        load("cifar")


def test_a_folder_for_what_lies_in_the_package(tmp_path):
    with pytest.raises(InputError, match=r"data\.dir is .* left out for fashion"):
        load("fashion", tmp_path)


def assert_refused(folder, words, name="svhn"):
    with pytest.raises(InputError) as caught:
        load(name, folder)
    text = str(caught.value)
    assert text.startswith(f"data.dir: {folder}") or text.startswith(f"data.dir is '{folder}'")
    assert "\n" not in text
    for word in words:
        assert word in text


def test_no_such_folder(tmp_path):
    assert_refused(tmp_path / "nowhere", ["an existing folder"])


def test_a_folder_without_the_data_set(tmp_path):
    assert_refused(tmp_path, ["has no train images", "ufldl-stanford/svhn/cropped_digits/train-*"])


def test_a_folder_without_test_pictures(tmp_path):
    write(tmp_path / "train-0.parquet", "svhn", pictures("svhn", 2), [0, 1])
    assert_refused(tmp_path, ["has no test images"])


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["train-00000-of-00002.parquet"], "second"),
        (["train-00001-of-00002.parquet"], "first"),
        (["train-00000-of-00001.parquet", "train-00000-of-00002.parquet"], "mixed"),
        (["train-00000-of-00001-ab.parquet", "train-00000-of-00001-cd.parquet"], "twice"),
    ],
)
def test_not_all_files_of_a_split(tmp_path, names, missing):
    for name in [*names, "test-00000-of-00001.parquet"]:
        write(tmp_path / name, "svhn", pictures("svhn", 2), [0, 1])
    assert_refused(tmp_path, [names[-1], "every train file of one version"])


def break_train(folder, **how):
    """A good data set but for its one training file."""
    good = {"name": "svhn", "inputs": list(pictures("svhn", 9)), "labels": list(range(9))}
    write(folder / "test-00000-of-00001.parquet", **good)
    file = folder / "train-00000-of-00001.parquet"
    write(file, **(good | how))
    return file


def test_wrong_columns(tmp_path):
    file = break_train(tmp_path, column="img")
    assert_refused(tmp_path, [str(file), "columns img, label", "columns image (images) and label"])


def test_pictures_that_are_none(tmp_path):
    file = break_train(tmp_path, kind=pa.int64())
    assert_refused(tmp_path, [str(file), "int64 in its column image"])


def test_labels_that_are_text(tmp_path):
    file = break_train(tmp_path, labels=["cat"] * 9)
    assert_refused(tmp_path, [str(file), "string in its column label"])


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_out_of_range(tmp_path, label):
    file = break_train(tmp_path, labels=[0] * 8 + [label])
    assert_refused(tmp_path, [str(file), f"label {label} in row 8", "labels from 0 to 9"])


def test_labels_missing(tmp_path):
    file = break_train(tmp_path, labels=[0] * 8 + [None], label_type=pa.int64())
    assert_refused(tmp_path, [str(file), "no label in row 8"])


def test_narrow_labels_are_widened(tmp_path):
    break_train(tmp_path, label_type=pa.uint8())
    assert load("svhn", tmp_path).train.labels.dtype == np.int64


def test_columns_in_another_order_and_more_of_them(tmp_path):
    file = break_train(tmp_path)
    expected = load("svhn", tmp_path).fingerprint()
    table = pq.read_table(file)
    other = {"id": pa.array(range(9)), "label": table["label"], "image": table["image"]}
    pq.write_table(pa.table(other), file)
    assert load("svhn", tmp_path).fingerprint() == expected


def test_a_picture_missing(tmp_path):
    file = break_train(tmp_path, inputs=[*pictures("svhn", 8), None])
    assert_refused(tmp_path, [str(file), "no image in row 8", "bytes of every image"])


def test_a_damaged_picture(tmp_path):
    good = pictures("svhn", 9)
    file = break_train(tmp_path, inputs=[*good[:8], encoded(good[8])[:-40]])
    assert_refused(tmp_path, [str(file), "a damaged image in row 8"])


def test_a_picture_of_another_size(tmp_path):
    file = break_train(tmp_path, inputs=list(pictures("mnist", 9)))
    assert_refused(tmp_path, [str(file), "28x28 pixels in row 0", "32x32"])


def test_no_rows(tmp_path):
    file = break_train(tmp_path, inputs=[], labels=[], label_type=pa.int64())
    assert_refused(tmp_path, [str(file), "has no images"])


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "inside", "folder"])
def test_a_damaged_file(tmp_path, damage):
    file = break_train(tmp_path)
    content = file.read_bytes()
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(
            {
                "empty": b"",
                "text": b"this is not a Parquet file",
                "cut": content[: len(content) // 2],
                "inside": content[:4] + bytes(60) + content[64:],
            }[damage]
        )
    assert_refused(tmp_path, [str(file), "unreadable", "download it again"])


def write_columns(file, **columns):
    """Pictures in the first column, whatever else in the others."""
    (image, inputs), *others = columns.items()
    rows = pa.array([{"bytes": encoded(x), "path": None} for x in inputs], type=IMAGE)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({image: rows, **dict(others)}), file, row_group_size=7)


def test_cifar100_with_fine_and_coarse_labels(tmp_path):
    folder = tmp_path / "uoft-cs/cifar100/cifar100"
    images, fine = pictures("cifar10", 12), np.arange(12) * 8
    for name in ("train", "test"):
        file = folder / f"{name}-00000-of-00001.parquet"
        write_columns(file, img=images, fine_label=fine, coarse_label=fine % 20)
    data = load("cifar100", tmp_path)
    np.testing.assert_array_equal(data.train.inputs, images)
    np.testing.assert_array_equal(data.train.labels, fine)
    assert (len(data.classes), data.classes[88], data.crop_padding) == (100, "tiger", 4)
    coarse = load("cifar100", tmp_path, labels="coarse")
    np.testing.assert_array_equal(coarse.test.labels, fine % 20)
    assert (len(coarse.classes), coarse.classes[-1]) == (20, "vehicles_2")
    with pytest.raises(
        InputError, match=r"data\.labels is 'fien', but should be 'fine' or 'coarse'"
    ):
        load("cifar100", tmp_path, labels="fien")


def test_femnist_by_writer(tmp_path):
    images = pictures("mnist", 26)
    writers = ["f0000_14"] * 10 + ["f0001_41"] * 15 + ["f0002_00"]
    write_columns(
        tmp_path / "flwrlabs/femnist/data/train-00000-of-00001.parquet",
        image=images,
        writer_id=writers,
        hsf_id=[0] * 26,
        character=[10, 61, *range(24)],
    )
    data = load("femnist", tmp_path)
    # The writer with most pictures is the first; a fifth of each writer's is for testing.
    assert data.client_names == ("f0001_41", "f0000_14", "f0002_00")
    assert np.bincount(data.train.clients).tolist() == [12, 8, 1]
    assert np.bincount(data.test.clients).tolist() == [3, 2]
    assert [data.classes[k] for k in (0, 10, 28, 53, 61)] == ["0", "A", "S", "r", "z"]
    every = {picture.tobytes() for split in (data.train, data.test) for picture in split.inputs}
    assert every == {picture.tobytes() for picture in images}


def test_femnist_with_a_missing_column_or_writer(tmp_path):
    file = tmp_path / "train-00000-of-00001.parquet"
    write_columns(file, image=pictures("mnist", 6), character=[0] * 6)
    assert_refused(tmp_path, ["columns image, character", "writer_id (texts)"], "femnist")
    names = pa.array(["a", None, *"aaaa"])
    write_columns(file, image=pictures("mnist", 6), character=[0] * 6, writer_id=names)
    assert_refused(tmp_path, ["no writer_id in row 1"], "femnist")
    write_columns(file, image=pictures("mnist", 4), character=[0, 62, 0, 0], writer_id=[*"aaaa"])
    assert_refused(tmp_path, ["label 62 in row 1", "0 to 61"], "femnist")
    write_columns(file, image=pictures("mnist", 4), character=[0] * 4, writer_id=[*"aabb"])
    assert_refused(tmp_path, ["fewer than five images of each client"], "femnist")


def test_tiny_imagenet_has_its_test_images_in_the_split_valid(tmp_path):
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    for name, count in (("train-00000-of-00001-1359597a978bc4fa", 6), ("valid-00000-of-00001", 2)):
        file = tmp_path / "zh-plus/tiny-imagenet/data" / f"{name}.parquet"
        write_columns(file, image=images[:count], label=np.arange(count) * 39)
    data = load("tiny_imagenet", tmp_path)
    np.testing.assert_array_equal(data.train.inputs, images)
    np.testing.assert_array_equal(data.test.labels, [0, 39])
    assert len(data.classes) == 200


def split(count=3, label=0):
    return Split(np.zeros((count, 2, 2, 1), np.uint8), np.full(count, label))


def test_fingerprint_changes_with_every_part():
    base = DataSet("mine", split(), split(), ("a", "b")).fingerprint()
    assert base == DataSet("other", split(), split(), ("a", "b")).fingerprint()
    touched = Split(np.ones((3, 2, 2, 1), np.uint8), np.zeros(3, int))
    reshaped = Split(np.zeros((3, 4, 1, 1), np.uint8), np.zeros(3, int))
    assert DataSet("mine", reshaped, reshaped, ("a", "b")).fingerprint() != base
    for other in (touched, split(label=1), split(count=4)):
        for train, test in ((other, split()), (split(), other)):
            assert DataSet("mine", train, test, ("a", "b")).fingerprint() != base
    assert len(base) == 64


def test_fingerprint_of_a_view_is_that_of_its_copy():
    view = Split(np.arange(64, dtype=np.uint8).reshape(4, 4, 4, 1)[::2], np.arange(4)[::2])
    copy = Split(view.inputs.copy(), view.labels.copy())
    mine, theirs = (DataSet("d", s, s, ("a", "b", "c")) for s in (view, copy))
    assert mine.fingerprint() == theirs.fingerprint()


def test_ones_own_data_is_checked():
    with pytest.raises(InputError, match="one integer for each of 3 samples"):
        Split(np.zeros((3, 2)), np.zeros(2, int))
    numbers = Split(np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(InputError, match="labels are float64"):
        DataSet("mine", numbers, numbers, ("a", "b"))
    with pytest.raises(InputError, match=r"labels are int64 .* as there are 0 classes"):
        DataSet("mine", split(), split(), ())
    assert DataSet("mine", numbers, numbers, ()).train.labels.dtype == np.float64
    with pytest.raises(InputError, match="labels are 5 to 5, but should be 0 to 1"):
        DataSet("mine", split(), split(label=5), ("a", "b"))
    with pytest.raises(InputError, match="data is empty"):
        DataSet("mine", split(0), split(), ("a", "b"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real pictures are not in ../shared/data")
def test_real_cifar10_comes_back_pixel_for_pixel(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # prepare.py sets it
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the folder is only to be read
    spec = importlib.util.spec_from_file_location("prepare", SHARED / "prepare.py")
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    mosaic = sorted((SHARED / "cifar10").glob("test_*.webp"))[0]
    inputs = prepare.tiles(mosaic, 600)
    labels = np.load(SHARED / "cifar10" / "labels.npz")["y_test"][:600]
    monkeypatch.setattr(prepare, "load", lambda *_: (inputs, labels))
    prepare.write("cifar10", tmp_path)
    data = load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train.inputs, inputs)
    np.testing.assert_array_equal(data.test.labels, labels)
    # CIFAR-10's first test picture is a cat, its second a ship.
    assert [data.classes[c] for c in data.test.labels[:2]] == ["cat", "ship"]
