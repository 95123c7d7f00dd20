"""Folders that cases start from, each made once: runs, comparisons, data and fleets."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.fuzz.apart import apart
from tests.fuzz.place import Place

TARGETS = np.array([[0.0, 1.0], [3.0, -1.0], [6.0, 2.5]])
TIMETABLE = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]])
TRACE = "client,online_from_s,online_until_s\na,0,900\nb,300,2000\nc,1500,1500\na,1200,2400\n"
QUADRATIC = """\
rounds = 4
evaluate_every = 1
[task]
targets = "targets.npy"
[links]
name = "bernoulli"
p = 0.6
[train]
local_steps = 2
"""
DIGITS = """\
rounds = 3
clients = 4
evaluate_every = 1
data = "digits"
model = "softmax"
[links]
name = "bernoulli"
p = 0.6
[train]
local_steps = 1
batch_size = 4
"""
APP = """
import torch

def model():
    return torch.nn.Linear(2, 2)

def data(client):
    return torch.arange(12.0).reshape(6, 2) / 12 + client, torch.arange(6) % 2
"""
APP_CONFIG = """
rounds = 2
clients = 4
evaluate_every = 1
[task]
app = "app.py"
[links]
name = "bernoulli"
p = 0.6
[train]
local_steps = 1
"""
PLUGIN = """\
import numpy as np
from fedpbc import Algorithm, link_scheme, mean, register_algorithm


@register_algorithm
class FedOwn(Algorithm):
    '''The mean of what arrived.'''

    name = "fedown"

    def __init__(self, init, *, factor: float = 1.0):
        super().__init__(init)
        self.factor = factor

    def aggregate(self, round, updates):
        if updates:
            self.x = self.x + self.factor * mean([u.delta for u in updates])


@link_scheme
def own_links(setting, *, every: int = 2):
    '''Up in every so many rounds.'''
    for t in range(setting.rounds):
        yield np.full(setting.clients, t % every == 0)
"""


SEARCH = ("--algorithms", "fedavg,fedau", "--candidates", "3", "--jobs", "1")


def write_inputs(folder: Path) -> None:
    """The files that small configurations name."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "targets.npy", TARGETS)
    np.save(folder / "timetable.npy", TIMETABLE)
    (folder / "trace.csv").write_text(TRACE)
    (folder / "quadratic.toml").write_text(QUADRATIC)
    (folder / "digits.toml").write_text(DIGITS)
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "app.py").write_text(APP)
    (folder / "app.toml").write_text(APP_CONFIG)


def command(folder: Path, *arguments: str) -> None:
    """Run a command in a folder and a process of its own; it must succeed."""
    from fedpbc.cli.app import main

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(folder)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            sys.argv = ["fedpbc", *arguments]
            main()
        except SystemExit as ending:
            code = int(ending.code or 0)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise RuntimeError(f"fedpbc {' '.join(arguments)} ended with code {code}")


def here(*arguments: str) -> None:
    """Run a command in this process; it must succeed."""
    from fedpbc.cli.app import main

    sys.argv = ["fedpbc", *arguments]
    try:
        main()
    except SystemExit as ending:
        if ending.code:
            raise RuntimeError(
                f"fedpbc {' '.join(arguments)} ended with code {ending.code}"
            ) from None


def killed(folder: Path, config: str, after: int, **options: object) -> None:
    """A run that was killed after some rounds."""
    from fedpbc import start_run
    from fedpbc.experiments.config_file import read_toml
    from fedpbc.experiments.configuration import Config
    from fedpbc.experiments.execution import Watcher

    child = os.fork()
    if child == 0:
        try:
            values = {**read_toml(folder / config), "checkpoint_every": 1, **options}

            def on_round(done: int, _: object) -> None:
                if done == after:
                    os._exit(0)

            start_run(Config.from_dict(values), folder / "run", watcher=Watcher(on_round=on_round))
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError("the run was not killed where it should be")


def _warm_up(folder: Path) -> None:
    """Whatever the commands import is imported in this process."""
    write_inputs(folder)
    os.chdir(folder)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    here("run", "quadratic.toml", "--out", "run", "--reported", "disk")
    here("run", "digits.toml", "--out", "digits")
    here("resume", "run")
    here("report", "run")
    here("theory", "run", "--out", "clients.csv")
    here("list")
    compare = ("--algorithms", "fedpbc,fedavg", "--seeds", "0", "--jobs", "1", "--out", "both")
    here("compare", "quadratic.toml", *compare)
    here("run", "app.toml", "--out", "app")
    here("tune", "quadratic.toml", "--candidates", "1", "--jobs", "1", "--out", "tune")
    here("advise", "quadratic.toml", "--minutes", "0.001", "--jobs", "1", "--out", "advice")
    here("verify", "advice")
    here(*PAPER, "--out", "paper")
    here("links", "quadratic.toml", "--out", "links.html")
    here("fleet", "init", "fleet", "--clients", "2", "--host", "127.0.0.1", "--data", "digits")
    import pyarrow.parquet  # noqa: F401
    from PIL import Image, PngImagePlugin  # noqa: F401

    import fedpbc.flower.strategies  # noqa: F401


def _finished(folder: Path) -> None:
    write_inputs(folder)
    command(folder, "run", "quadratic.toml", "--out", "run")


def _finished_digits(folder: Path) -> None:
    write_inputs(folder)
    command(folder, "run", "digits.toml", "--out", "run", "--set", "checkpoint_every=1")


def _finished_disk(folder: Path) -> None:
    write_inputs(folder)
    settings = ("--reported", "disk", "--set", "checkpoint_every=1")
    command(folder, "run", "quadratic.toml", "--out", "run", *settings)


def _finished_table(folder: Path) -> None:
    write_inputs(folder)
    links = ("--links", "table", "--set", "links.file=timetable.npy")
    command(folder, "run", "quadratic.toml", "--out", "run", *links)


def _killed(folder: Path) -> None:
    write_inputs(folder)
    killed(folder, "quadratic.toml", 2)


def _killed_digits(folder: Path) -> None:
    write_inputs(folder)
    killed(folder, "digits.toml", 2)


def _killed_disk(folder: Path) -> None:
    write_inputs(folder)
    killed(folder, "quadratic.toml", 3, reported="disk")


def _foreign(folder: Path) -> None:
    write_inputs(folder)
    # Whoever imports it finds out, by a file at home.
    mark = "from pathlib import Path\nPath.home().joinpath('executed').touch()\n"
    (folder / "plugin.py").write_text(mark + PLUGIN)
    os.environ["HOME"] = str(folder)
    killed(folder, "quadratic.toml", 2, plugins=[str(folder / "plugin.py")], algorithm="fedown")


def _resumed(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    shutil.copytree(folder.parent / name / "run", folder / "run")
    command(folder, "resume", "run")


def _comparison(folder: Path) -> None:
    write_inputs(folder)
    names = ("--algorithms", "fedpbc,mifa", "--seeds", "0,1", "--jobs", "1")
    command(folder, "compare", "quadratic.toml", *names, "--out", "run")


def _comparison_killed(folder: Path) -> None:
    _comparison(folder)
    run = folder / "run"
    for name in ("comparison.json", "table.md", "accuracy.png", "report.html"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "mifa" / "seed-1")


def _comparison_other(folder: Path) -> None:
    """The same with another step size, which nothing of an overwritten one may hide."""
    write_inputs(folder)
    names = ("--algorithms", "fedpbc,mifa", "--seeds", "0,1", "--jobs", "1")
    other = ("--learning-rate", "0.02")
    command(folder, "compare", "quadratic.toml", *names, *other, "--out", "run")


def _search(folder: Path, *settings: str) -> None:
    write_inputs(folder)
    command(folder, "tune", "quadratic.toml", *SEARCH, *settings, "--out", "run")


def _killed_at(function: str, call: int) -> None:
    """Let this process end when a sweep starts or resumes its n-th run."""
    from fedpbc.experiments import sweep

    original, calls = getattr(sweep, function), []

    def counted(*values: object, **options: object) -> object:
        calls.append(None)
        if len(calls) == call:
            os._exit(0)
        return original(*values, **options)

    setattr(sweep, function, counted)


def _search_killed(folder: Path, function: str, call: int) -> None:
    _killed_at(function, call)
    _search(folder)


def _advice(folder: Path) -> None:
    from fedpbc.experiments.advice import advise
    from fedpbc.experiments.advice.schedule import Schedule

    write_inputs(folder)
    # One that does not depend on how busy the machine is.
    plan = Schedule(4, ("fedavg", "mifa"), 2, 1, 2, False, 9.0, False)
    vars(advise)["choose_schedule"] = lambda *_, **options: plan
    options = ("--minutes", "0.001", "--jobs", "1", "--out", "run")
    command(folder, "advise", "quadratic.toml", *options)


def _advice_killed(folder: Path, call: int) -> None:
    _killed_at("start_run", call)
    _advice(folder)


PAPER = (
    *("paper", "table1", "--data", "digits", "--algorithms", "fedavg,fedpbc"),
    *("--links", "bernoulli", "--seeds", "0", "--rounds", "2", "--set", "clients=3"),
    *("--set", "model=softmax", "--set", "train.local_steps=1", "--tuned", "no", "--jobs", "1"),
)
"""The smallest table of the paper."""


def _paper(folder: Path) -> None:
    folder.mkdir(parents=True)
    command(folder, *PAPER, "--out", "run")


def _paper_killed(folder: Path) -> None:
    _paper(folder)
    run = folder / "run"
    for name in ("table1.md", "table1.json", "report.html", "table1-digits.png"):
        (run / name).unlink()
    shutil.rmtree(run / "digits" / "bernoulli" / "fedpbc")


def _fleet(folder: Path) -> None:
    folder.mkdir(parents=True)
    options = ("--clients", "2", "--host", "fleet.example.org", "--data", "digits")
    command(folder, "fleet", "init", "run", *options)


def _fleet_insecure(folder: Path) -> None:
    folder.mkdir(parents=True)
    options = ("--clients", "2", "--host", "127.0.0.1", "--insecure")
    command(folder, "fleet", "init", "run", *options)


def _job(folder: Path) -> None:
    """A fleet's job that ended, in its server's folder."""
    from fedpbc.deployment.server.server_directory import ServerDirectory
    from fedpbc.deployment.server.server_loop import Server
    from fedpbc.deployment.settings import read_fleet
    from tests.deployment.fake_network import FakeNetwork, make_trainers

    server = folder / "run"
    server.mkdir(parents=True)
    (server / "fleet.toml").write_text(
        'clients = 3\nrounds = 4\ndata = "digits"\nmodel = "softmax"\n[fleet]\nwait_for = 3\n'
        "round_seconds = 10.0\n"
    )
    settings = read_fleet(server / "fleet.toml")
    trainers = make_trainers(settings.whole_task(), folder / "devices")
    network = FakeNetwork(trainers, lambda client, t: "lost" if client == t else "ok")
    x0, layout = settings.first_model()
    with ServerDirectory(server) as directory:
        Server(
            settings.algorithm(x0),
            settings.training,
            directory,
            network,
            rounds=4,
            layout=layout,
            client_settings=settings.client_settings(),
            fleet=settings.fleet,
            now=network.now,
            sleep=network.wait,
        ).run()


def _data(folder: Path) -> None:
    from tests.fuzz.data_files import TEST, TRAIN, parquet, picture

    folder.mkdir(parents=True)
    images = [{"bytes": picture()}] * 20
    for name in (TRAIN, TEST):
        (folder / name).write_bytes(parquet(images, [k % 10 for k in range(20)]))


TEMPLATES: dict[str, Callable[[Path], None]] = {
    "warm-up": _warm_up,
    "finished": _finished,
    "finished-digits": _finished_digits,
    "finished-disk": _finished_disk,
    "finished-table": _finished_table,
    "killed": _killed,
    "killed-digits": _killed_digits,
    "killed-disk": _killed_disk,
    "killed-resumed": partial(_resumed, name="killed"),
    "killed-digits-resumed": partial(_resumed, name="killed-digits"),
    "killed-disk-resumed": partial(_resumed, name="killed-disk"),
    "foreign": _foreign,
    "comparison": _comparison,
    "comparison-killed": _comparison_killed,
    "comparison-other": _comparison_other,
    "search": _search,
    "search-other": lambda folder: _search(folder, "--learning-rate", "0.02"),
    "search-killed": partial(_search_killed, function="start_run", call=5),
    "search-killed-late": partial(_search_killed, function="resume_run", call=3),
    "advice": _advice,
    "advice-killed": partial(_advice_killed, call=3),
    "advice-killed-late": partial(_advice_killed, call=7),
    "paper": _paper,
    "paper-killed": _paper_killed,
    "job": _job,
    "data": _data,
    "fleet": _fleet,
    "fleet-insecure": _fleet_insecure,
}
WARM_UP = ("warm-up",)


def make_template(name: str, folder: Path) -> None:
    """Make one of them in a new folder."""
    TEMPLATES[name](folder)


def template(place: Place, name: str) -> Path:
    """A template's folder, which is made when it is first needed; not to be changed."""
    folder = place.templates / name
    if name.endswith("-resumed"):
        template(place, name.removesuffix("-resumed"))
    if not folder.exists():
        building = place.templates / f"{name}.building"
        shutil.rmtree(building, ignore_errors=True)
        if not apart(partial(make_template, name, building)):
            raise RuntimeError(f"the template {name} cannot be made")
        building.rename(folder)
    return folder


def copy_template(place: Place, name: str, target: Path | None = None) -> Path:
    """A copy of a template's ``run`` in the working folder."""
    target = target or place.work / "run"
    shutil.copytree(template(place, name) / "run", target, symlinks=True)
    return target
