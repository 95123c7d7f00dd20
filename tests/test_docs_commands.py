"""The shell blocks of README and docs, run line by line as they stand, each page in a folder.

Lines are only made shorter, by options of the project's own that are put behind them (SMALLER).
Files that a page speaks of are made from its own blocks where it shows them (FILES). What is not
run is in NOT_RUN, each with its reason; ``make test-long`` shows that list.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.commandline import fedpbc
from tests.doc_blocks import PAGES, ROOT, blocks, python_blocks
from tests.processes import PATIENCE, child, wait_until

DOCS = ROOT / "docs"

ELSEWHERE = {"deployment.md", "flower.md"}
"""Pages about real fleets and Flower apps, whose commands are run by tests/deployment and
tests/flower: they need several processes beside each other."""

NETWORK = "downloads a data set"
HOURS = "takes hours, and reads files of the repository"
MLFLOW = "needs MLflow, which is not installed" if find_spec("mlflow") is None else None
NOT_RUN = {
    ("README.md", "make test"): "it would run this test",
    ("data.md", "fedpbc run --data cifar10 --rounds"): NETWORK,
    ("data.md", "fedpbc run --data cifar10 --data-dir"): "needs the downloaded files of CIFAR-10",
    ("data.md", "fedpbc run --data hub:"): NETWORK,
    ("how-to.md", "fedpbc run --data hub:"): NETWORK,
    ("paper.md", "fedpbc paper table2 --data cifar10"): "needs the downloaded files of CIFAR-10",
    ("paper.md", "fedpbc paper tune --data svhn"): NETWORK,
    ("study.md", "fedpbc tune"): HOURS,
    ("study.md", "fedpbc compare"): HOURS,
    ("study.md", "python tools/study.py"): HOURS,
    ("tracking.md", "fedpbc compare"): MLFLOW,
    ("tracking.md", "fedpbc resume runs/a --track mlflow"): MLFLOW,
    ("views.md", "fedpbc run --algorithm fedpbc"): "needs the downloaded files of CIFAR-10",
}

SMALLER = (
    (r"check\.toml|--watch", ""),
    (r"fedpbc compare --data shakespeare", "--rounds 1 --seeds 0 --clients 5"),
    (r"fedpbc run --data shakespeare", "--rounds 1 --clients 5"),
    (r"fedpbc run --data table", "--rounds 3 --clients 4"),
    (r"fedpbc run|fedpbc compare", "--rounds 3"),
    (r"fedpbc tune", "--rounds 4 --candidates 2"),
    (r"fedpbc advise", "--minutes 1 --rounds 10"),
    (r"fedpbc paper fig[26]", "--quick"),
    (r"fedpbc paper fig3", "--quick --rounds 40"),
    (r"fedpbc paper fig5", "--quick"),
    (r"fedpbc paper", "--rounds 2 --seeds 0"),
    (r"fedpbc fleet demo", "--rounds 2"),
)
"""What is put behind a line that begins so; the first that fits."""


def write_log(path: Path) -> None:
    """A fleet's log: twenty devices, of which most drop out now and then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["# round_seconds = 10", "client,online_from_s,online_until_s"]
    for device in range(20):
        for start in range(0, 2000, 100 + 10 * device):
            lines.append(f"device-{device},{start},{start + 60}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_rows(path: Path) -> None:
    """Rows of numbers and their class."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    columns = {"age": np.arange(100) % 70, "height": 150 + np.arange(100) % 47}
    table = pa.table({**columns, "ill": np.arange(100) % 2})
    writer = pyarrow.csv.write_csv if path.suffix == ".csv" else pq.write_table
    writer(table, path)


def write_texts(path: Path) -> None:
    """Texts of four authors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"Once upon a time there were {k} bears. " * 30 for k in range(8)]
    pq.write_table(pa.table({"text": texts, "author": [*"abcdabcd"]}), path)


def write_block(page: str, text: str) -> Callable[[Path], None]:
    """Save the Python block of a page that has this text."""

    def write(path: Path) -> None:
        (block,) = [b for b in python_blocks(DOCS / page) if text in b.text]
        path.write_text(block.text, encoding="utf-8")

    return write


def write_mine(path: Path) -> None:
    """An algorithm of one's own: a page's, under the name that another page gives it."""
    write_block("algorithms.md", "class FedAdam")(path)
    path.write_text(path.read_text("utf-8").replace('"fedadam"', '"mine"'), encoding="utf-8")


def write_toml(text: str) -> Callable[[Path], None]:
    """Save the file of docs/configuration.md that has this line."""

    def write(path: Path) -> None:
        (block,) = [b for b in blocks(DOCS / "configuration.md") if text in b.text.splitlines()]
        path.write_text(block.text, encoding="utf-8")

    return write


def write_app(path: Path) -> None:
    """The tutorial's app file, which a Python block there writes."""
    (block,) = [b for b in python_blocks(DOCS / "tutorial.md") if 'Path("app.py")' in b.text]
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        block.run({"Path": Path})
    finally:
        os.chdir(before)


FILES: dict[str, Callable[[Path], None]] = {
    "log.csv": write_log,
    "links.csv": write_log,
    "phones.csv": write_log,
    "server/links.csv": write_log,
    "fleet/server/links.csv": write_log,
    "app.py": write_app,
    "check.toml": write_toml('targets = "targets.npy"'),
    "digits.toml": write_toml('data = "digits"'),
    "fedadam.py": write_block("algorithms.md", "class FedAdam"),
    "machines.py": write_block("data.md", "def sensors"),
    "mine.py": write_mine,
    "rows.csv": write_rows,
    "rows.parquet": write_rows,
    "texts.parquet": write_texts,
    "stations.py": write_block("links.md", "def base_stations"),
    "targets.npy": lambda path: np.save(path, [[0.0], [8.0]]),
    "timetable.npy": lambda path: np.save(path, [[1, 1], [0, 1]]),
}
"""Made for a page that names them."""


TWO_RUNS = "fedpbc compare --data digits --clients 20 --algorithms fedpbc,fedavg --out runs/compare"
ONE_RUN = "fedpbc run --data digits --clients 20 --out runs"
BEFORE = {
    "link-statistics.md": [TWO_RUNS],
    "report.md": [
        TWO_RUNS,
        f"{ONE_RUN}/a",
        f"{ONE_RUN}/b --set train.decay=false",
        "fedpbc paper table1 --quick --links bernoulli_varying --out paper/table1",
    ],
    "theory.md": [f"{ONE_RUN}/a"],
}
"""Runs that a page takes for granted, by the commands of other pages."""


@dataclass(frozen=True)
class Line:
    """A command of a page, with what makes it shorter."""

    page: str
    text: str

    @property
    def why_not(self) -> str | None:
        """Why it is not run; None if it is."""
        for (page, begin), reason in NOT_RUN.items():
            if page == self.page and self.text.startswith(begin):
                return reason
        return None

    @property
    def command(self) -> str:
        options = next((o for begin, o in SMALLER if re.search(begin, self.text)), "")
        # Before a redirection; what comes behind a comment would not be read.
        plain = re.sub(r"\s+#.*", "", self.text)
        words, redirection = re.match(r"(.*?)(\s*(?:>.*)?)$", plain).groups()
        return f"{words} {options}".rstrip() + redirection


def lines_of(page: Path) -> Iterator[Line]:
    for block in blocks(page):
        if block.language == "sh":
            for text in block.text.replace("\\\n", " ").splitlines():
                if text.strip():
                    yield from made_by(Line(page.name, text.strip()))


def made_by(line: Line) -> Iterator[Line]:
    """The commands of a make target, since in a fresh folder make would install everything."""
    if not line.text.startswith("make demo"):
        yield line
        return
    told = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True)
    for text in told.stdout.splitlines():
        if text.startswith(".venv/bin/fedpbc "):
            text = text.removeprefix(".venv/bin/").replace("examples/", f"{ROOT}/examples/")
            yield Line(line.page, text)


def with_commands() -> list[Path]:
    return [p for p in PAGES if p.name not in ELSEWHERE and any(lines_of(p))]


def write_files(page: Path, folder: Path) -> None:
    """The files that the page's commands name; not those that they make."""
    text = " ".join(line.text for line in lines_of(page))
    for name, write in FILES.items():
        if name in text or (name.endswith(".npy") and "check.toml" in text):
            write(folder / name)


def prepare(page: Path, folder: Path) -> None:
    """Everything that a page takes for granted."""
    write_files(page, folder)
    for command in BEFORE.get(page.name, ()):
        run_line(Line(page.name, command), folder)


def run_line(line: Line, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    options = {"cwd": folder, "env": {**os.environ, "PATH": path}}
    # A comment may speak of the option, too.
    watches = "--watch" in line.text.partition("#")[0]
    with child(["bash", "-euc", line.command], stderr=subprocess.STDOUT, **options) as process:
        if watches:
            # It goes on until somebody stops it: once the page is there.
            wait_until(lambda: list(folder.glob("**/report.html")) or process.poll() is not None)
            os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=10 * PATIENCE)
    ended = {0, 130} if watches else {0}
    assert process.returncode in ended, f"{line.page}: {line.command}\n{out}"
    assert "Traceback" not in out, f"{line.page}: {line.command}\n{out}"


@pytest.mark.long
@pytest.mark.parametrize("page", with_commands(), ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, tmp_path):
    prepare(page, tmp_path)
    for line in lines_of(page):
        if line.why_not is None:
            run_line(line, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("key", NOT_RUN, ids=lambda key: f"{key[0]}: {key[1]}")
def test_what_is_not_run(key):
    """Shows the list; an entry without a line is out of date."""
    page = next(page for page in PAGES if page.name == key[0])
    assert any(line.text.startswith(key[1]) for line in lines_of(page))
    if NOT_RUN[key] is not None:
        pytest.skip(NOT_RUN[key])


QUICK = ("fedpbc theory --p", "fedpbc theory --table", "fedpbc list", "fedpbc run check.toml")


@pytest.mark.slow
def test_commands_that_take_no_time_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried = []
    for page in (DOCS / "theory.md", DOCS / "how-to.md", DOCS / "configuration.md"):
        write_files(page, tmp_path)
        for line in lines_of(page):
            if line.text.startswith(QUICK):
                ended = fedpbc(*shlex.split(line.command)[1:])
                assert ended.code == 0, f"{line.page}: {line.command}\n{ended.err}"
                tried.append(line.text)
    assert len(tried) >= 6


def test_lines_are_made_shorter_before_comments_and_redirections():
    line = Line("a.md", "fedpbc compare --seeds 0-4   # five")
    assert line.command == "fedpbc compare --seeds 0-4 --rounds 3"
    line = Line("a.md", "fedpbc compare --out runs/a > log 2>&1")
    assert line.command == "fedpbc compare --out runs/a --rounds 3 > log 2>&1"
    assert Line("a.md", "fedpbc list").command == "fedpbc list"
