"""The page about a fleet: `fedpbc report` with the folder of a fleet."""

from __future__ import annotations

import json
import re
import time

import pytest
from safetensors.torch import save_file

from fedpbc.deployment.ops.launcher_lock import only_launcher
from fedpbc.deployment.ops.status_page import StatusPage
from fedpbc.deployment.ops.view_accuracy import view_accuracies
from fedpbc.deployment.settings import read_fleet
from fedpbc.experiments.trust import remember_plugins
from fedpbc.experiments.user_app import load_user_app
from tests.commandline import fedpbc, ran, refused
from tests.deployment.real_fleet import APP
from tests.deployment.round_logs import round_line, write_log
from tests.synthetic_runs import write_run

TEST = """
def test():
    return data(0)
"""


def text_of(page) -> str:
    """What a reader sees: no tags, scripts or styles."""
    content = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"))
    return " ".join(re.sub(r"<[^>]*>", " ", content).split())


def data_of(page):
    content = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', content)[1])


def a_fleet(folder, **options):
    now = time.time()
    lines = [
        round_line(t, [0] if t else [0, 1], refused=[2] if t == 3 else [], at=now - 43)
        for t in range(4)
    ]
    return write_log(folder, lines, connected=[0, 1, 2], **options)


def test_it_says_who_is_up_since_when_and_what_is_left(tmp_path):
    server = a_fleet(tmp_path / "server")
    with only_launcher("server", server):
        ended = ran("report", server)
    page = server / "report.html"
    assert ended.out.startswith(f"written: {page} (fedpbc: 4 of 10 rounds done; 1 of 4 clients")
    text = text_of(page)
    # Six rounds of 10 s, less the 3 s since the last.
    assert re.search(r"rounds done 4 of 10 time left 5[0-9] s, until \d\d:\d\d", text)
    assert "staleness mean 3.8, largest 5" in text
    assert "answers refused 1 received 2.0 kB sent 6.4 kB" in text
    # Client, link, since round, for, last contact, ago, rounds owed, staleness, refused, node.
    assert re.search(r" 0 answered 0 3\d s 3 \d s 0 1 – 900 ", text)
    assert re.search(r" 1 silent 1 3\d s 0 3\d s 3 4 – 901 ", text)
    assert re.search(r" 2 refused – – – – 4 5 1 902 ", text)
    assert re.search(r" 3 never connected – – – – 4 5 – – ", text)
    (charts,) = data_of(page)["groups"]
    assert charts["rounds"]["answered"] == [2, 1, 1, 1]
    assert charts["fleet"]["timetable"].startswith("data:image/png;base64,")


def test_the_folder_of_the_whole_fleet_will_do(tmp_path):
    a_fleet(tmp_path / "server")
    ran("report", tmp_path, "--title", "Plant 7")
    assert text_of(tmp_path / "report.html").startswith("Plant 7 ")
    # Written again over itself, and over nothing else.
    ran("report", tmp_path)
    assert text_of(tmp_path / "report.html").startswith(f"Fleet {tmp_path.name} ")
    (tmp_path / "report.html").write_text("mine")
    assert "is not a report" in refused(fedpbc("report", tmp_path))


def test_runs_beside_a_fleet_are_runs(tmp_path):
    a_fleet(tmp_path / "server")
    write_run(tmp_path / "runs" / "one")
    assert "1 finished" in ran("report", tmp_path).out
    assert "4 of 10 rounds done" in ran("report", tmp_path / "server").out


def test_a_fleet_has_a_page_of_its_own(tmp_path):
    server, run = a_fleet(tmp_path / "server"), tmp_path / "run"
    write_run(run)
    assert "a fleet has a page of its own" in refused(fedpbc("report", run, server))
    assert "--baseline" in refused(fedpbc("report", server, "--baseline", "fedavg"))
    assert not (server / "report.html").exists()


def test_a_fleet_before_its_first_round(tmp_path):
    server = write_log(tmp_path / "server", [], connected=[0])
    with only_launcher("server", server):
        ran("report", server)
    assert "1 of 4 clients connected; round 1 of 10 is running" in text_of(server / "report.html")
    assert data_of(server / "report.html")["groups"] == []


def test_a_link_out_of_the_folder_is_no_fleet(tmp_path):
    a_fleet(tmp_path / "elsewhere")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "server").symlink_to(tmp_path / "elsewhere")
    assert "one with runs in it" in refused(fedpbc("report", tmp_path / "sent"))


def test_a_damaged_log_is_named_and_nothing_written(tmp_path):
    server = a_fleet(tmp_path / "server")
    (server / "rounds.jsonl").write_text("{}\n")
    assert "damaged in line 1" in refused(fedpbc("report", server))
    assert not (server / "report.html").exists()


def test_watching_follows_the_job_to_its_end(tmp_path):
    server = a_fleet(tmp_path / "server", rounds=6)
    page, seen = server / "report.html", []

    def on_change(status):
        seen.append((status.rounds_done, data_of(page)["live"]))
        with (server / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(round_line(status.rounds_done, [0])) + "\n")

    assert StatusPage(server, page, "t").watch(on_change, every=0.01)
    assert seen == [(4, 5), (5, 5), (6, 5)]
    # The last version does not reload itself.
    assert data_of(page)["live"] == 0
    assert "fedpbc fleet check" in text_of(page)


def test_an_interrupted_watch_leaves_a_page_that_stays(tmp_path):
    server = a_fleet(tmp_path / "server")

    def interrupt(status):
        raise KeyboardInterrupt

    assert not StatusPage(server, server / "report.html", "t").watch(interrupt)
    assert data_of(server / "report.html")["live"] == 0


def with_models(server, rounds=4):
    """The initial model as that of a view."""
    flat, layout = read_fleet(server / "fleet.toml").first_model()
    (server / "models").mkdir()
    path = server / "models" / "server.safetensors"
    named = {name: part.contiguous() for name, part in layout.named(flat).items()}
    save_file(named, path, {"rounds": str(rounds)})


def with_app(server, text):
    (server / "mine.py").write_text(text)
    remember_plugins([server / "mine.py"])
    with_models(server)


def test_the_accuracy_on_a_built_in_data_set(tmp_path):
    server = a_fleet(tmp_path / "server", fleet='[data]\nname = "digits"\n')
    with_models(server)
    (view,) = view_accuracies(server).views
    settings = read_fleet(server / "fleet.toml")
    task = settings.whole_task()
    assert (view.view, view.rounds) == ("server", 4)
    assert view.accuracy == task.evaluate(task.init()).test_accuracy
    ran("report", server)
    assert f"server 4 {100 * view.accuracy:.2f} models/server" in text_of(server / "report.html")


def test_the_accuracy_on_the_apps_test_samples(tmp_path):
    server = a_fleet(tmp_path / "server", fleet='app = "mine.py"\n')
    with_app(server, APP + TEST)
    (view,) = view_accuracies(server).views
    app = load_user_app(server / "mine.py")
    inputs, labels = app.samples(0)
    right = app.module(seed=0)(inputs).argmax(1) == labels
    assert view.accuracy == pytest.approx(right.double().mean().item())


def test_an_app_without_test_samples_or_consent(tmp_path):
    server = a_fleet(tmp_path / "server", fleet='app = "mine.py"\n')
    with_app(server, APP)
    models = view_accuracies(server)
    assert [view.accuracy for view in models.views] == [None]
    assert models.reason == "The app has no test(), so there are no test samples."
    # Another content, which nobody has run here.
    marked = server / "ran"
    (server / "mine.py").write_text(f"{APP}{TEST}open({str(marked)!r}, 'w')\n")
    models = view_accuracies(server)
    assert [view.accuracy for view in models.views] == [None]
    assert models.reason == "Not evaluated: you have not run this app on this machine."
    assert not marked.exists()
    # A page is written all the same.
    ran("report", server)
    assert "you have not run this app on this machine" in text_of(server / "report.html")


def test_a_damaged_model_is_named_on_the_page(tmp_path):
    server = a_fleet(tmp_path / "server")
    (server / "models").mkdir()
    (server / "models" / "server.safetensors").write_bytes(b"\0" * 100)
    ran("report", server)
    assert "models/server.safetensors is damaged" in text_of(server / "report.html")
