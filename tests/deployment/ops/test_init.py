"""``fedpbc fleet init``: its files work with the fleet's commands, systemd and TLS."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest

from fedpbc import simulate
from fedpbc.deployment.device.settings import read_device
from fedpbc.deployment.settings import read_fleet
from tests.commandline import content, fedpbc, ran, refused
from tests.deployment.handshakes import trusts

pytest.importorskip("cryptography", reason="needs the extra: pip install 'fedpbc[flower]'")

LEAST = ("--clients", 2, "--host", "fleet.example.org")
MINE = """import torch
from torch import nn

def model():
    return nn.Linear(3, 2)

def data(client):
    raise RuntimeError("only on a device")
"""


@pytest.fixture
def fleet(tmp_path):
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--host", "10.0.0.1", "--host", "2001:db8::1")
    return tmp_path / "fleet"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def unit(path: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return dict(parser["Service"])


def test_all_files_and_no_others(fleet):
    both = {"app.py", "compose.yaml", "Dockerfile", ".dockerignore"}
    server = both | {"fleet.toml", "fedpbc-fleet-server.service"}
    server |= {f"certificates/{name}" for name in ("ca.crt", "server.crt", "server.key")}
    server |= {f"keys/client-{i}.pub" for i in (0, 1)}
    device = both | {"device.toml", "fedpbc-fleet-device.service", "ca.crt", "node.key"}
    expected = {"README.md", "init.toml", "authority/ca.crt", "authority/ca.key"}
    expected |= {f"server/{name}" for name in server}
    expected |= {f"device-{i}/{name}" for i in (0, 1) for name in device}
    assert {name for name, held in content(fleet).items() if held is not None} == expected
    assert names(fleet.parent) == ["fleet"]


def test_secrets_are_readable_by_their_owner_only(fleet):
    files = {name: held for name, held in content(fleet).items() if held is not None}
    secrets = {name for name, held in files.items() if b"PRIVATE KEY" in held}
    assert secrets == {
        "authority/ca.key",
        "server/certificates/server.key",
        "device-0/node.key",
        "device-1/node.key",
    }
    for name in secrets:
        assert stat.S_IMODE((fleet / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((fleet / "authority").stat().st_mode) == 0o700
    assert len({files[name] for name in secrets}) == 4


def test_server_and_devices_read_their_settings(tmp_path):
    options = ("--port", 443, "--rounds", 30, "--algorithm", "fedawe", "--round-seconds", 7.5)
    ran("fleet", "init", tmp_path / "fleet", "--clients", 3, "--host", "[2001:db8::1]", *options)
    settings = read_fleet(tmp_path / "fleet/server/fleet.toml")
    assert (settings.clients, settings.config.general.rounds) == (3, 30)
    assert settings.config.algorithm["name"] == "fedawe"
    assert (settings.fleet.round_seconds, settings.fleet.wait_for) == (7.5, 3)
    assert settings.fleet.listen == "[::]:443"
    assert settings.fleet.app == str(tmp_path / "fleet/server/app.py")
    for client in range(3):
        device = read_device(tmp_path / f"fleet/device-{client}/device.toml")
        assert (device.client, device.server) == (client, "[2001:db8::1]:443")
        assert device.app == str(tmp_path / f"fleet/device-{client}/app.py")
        assert (device.catch_up, device.device) == ("clock", "cpu")


def test_devices_trust_their_server_under_its_names_only(fleet, tmp_path):
    certificates = fleet / "server/certificates"
    ran("fleet", "init", tmp_path / "other", *LEAST)
    for host in ("fleet.example.org", "10.0.0.1", "2001:db8::1", "127.0.0.1", "localhost"):
        assert trusts(fleet / "device-1/ca.crt", certificates, host)
        assert not trusts(tmp_path / "other/device-1/ca.crt", certificates, host)
    assert not trusts(fleet / "device-1/ca.crt", certificates, "other.example.org")
    assert not trusts(fleet / "device-1/ca.crt", certificates, "10.0.0.2")


def test_the_server_knows_each_device_by_its_key(fleet):
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
    )

    for client in (0, 1):
        private = load_ssh_private_key((fleet / f"device-{client}/node.key").read_bytes(), None)
        public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        registered = (fleet / f"server/keys/client-{client}.pub").read_bytes()
        assert registered == public + f" client-{client}\n".encode()


@pytest.mark.parametrize(("days", "authority"), [(400, 3650), (5000, 5000)])
def test_the_authority_outlasts_the_servers_certificate(tmp_path, days, authority):
    from fedpbc.deployment.security.certificates import read_certificate

    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--days", days)
    readme = (tmp_path / "fleet/README.md").read_text()
    for name, expected in (("ca", authority), ("server", days)):
        certificate = read_certificate(tmp_path / f"fleet/server/certificates/{name}.crt")
        valid = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        # A second may pass between the two: a certificate does not outlast its authority.
        assert round(valid.total_seconds() / 86400, 3) == expected
        assert f"{certificate.not_valid_after_utc:%Y-%m-%d}" in readme


def test_the_example_learns(fleet):
    task = read_fleet(fleet / "server/fleet.toml").whole_task()
    result = simulate(task, "fedpbc", "always", rounds=60)
    assert task.evaluate(task.init()).test_accuracy < 0.6
    assert result.metrics[-1].views["reported"].test_accuracy > 0.9


def test_a_users_file_is_copied_unchanged_and_its_data_not_loaded(tmp_path):
    mine = tmp_path / 'my "own" file.py'
    mine.write_bytes(MINE.replace("\n", "\r\n").encode())
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--app", mine)
    assert read_fleet(tmp_path / "fleet/server/fleet.toml").fleet.app is not None
    for folder in ("server", "device-0", "device-1"):
        assert (tmp_path / "fleet" / folder / mine.name).read_bytes() == mine.read_bytes()
    assert read_device(tmp_path / "fleet/device-0/device.toml").app is not None
    assert not list((tmp_path / "fleet").rglob("app.py"))


def test_a_data_set_needs_no_file(tmp_path):
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--data", "digits")
    settings = read_fleet(tmp_path / "fleet/server/fleet.toml")
    assert settings.fleet.app is None
    assert settings.config.data.name == "digits"
    assert read_device(tmp_path / "fleet/device-1/device.toml").app is None
    assert not list((tmp_path / "fleet").rglob("*.py"))
    assert "data_dir" not in (tmp_path / "fleet/README.md").read_text()


def test_the_folder_of_the_pictures_can_be_set_on_all_machines(tmp_path):
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--data", "cifar10")
    assert "data_dir" in (tmp_path / "fleet/README.md").read_text()
    for name, key in (("server/fleet.toml", "dir"), ("device-1/device.toml", "data_dir")):
        path = tmp_path / "fleet" / name
        line = f'# {key} = "/srv/pictures"'
        assert line in path.read_text()
        path.write_text(path.read_text().replace(line, f'{key} = "{tmp_path}"'))
    assert read_fleet(tmp_path / "fleet/server/fleet.toml").config.data.dir == str(tmp_path)
    assert read_device(tmp_path / "fleet/device-1/device.toml").data_dir == str(tmp_path)


def test_an_insecure_fleet_has_no_keys_and_says_so_everywhere(tmp_path):
    output = ran("fleet", "init", tmp_path / "fleet", *LEAST, "--insecure").out
    assert "no encryption and no keys" in output
    files = content(tmp_path / "fleet")
    assert not [name for name in files if Path(name).suffix in {".crt", ".key", ".pub"}]
    assert not (tmp_path / "fleet/authority").exists()
    for role, name in (("server", "server"), ("device", "device-1")):
        folder = tmp_path / "fleet" / name
        assert " --insecure" in unit(folder / f"fedpbc-fleet-{role}.service")["ExecStart"]
        assert '"--insecure"]' in (folder / "compose.yaml").read_text()
    readme = (tmp_path / "fleet/README.md").read_text()
    assert "**This fleet has no encryption and no keys" in readme
    assert "renew" not in readme
    assert ".key" not in readme


@pytest.mark.parametrize("role", ["server", "device"])
def test_service_container_and_readme_run_the_same_command(fleet, role):
    folder = fleet / ("server" if role == "server" else "device-1")
    service = unit(folder / f"fedpbc-fleet-{role}.service")
    program, *arguments = shlex.split(service["ExecStart"])
    own = ["--user", "fedpbc-app"] if role == "device" else []
    assert arguments == ["fleet", role, f"/var/lib/fedpbc/{role}", "--trust", *own]
    if role == "server":
        assert service["StateDirectory"] == service["User"] == "fedpbc"
    assert service["Restart"] == ("on-failure" if role == "server" else "always")
    assert service["RestartPreventExitStatus"] == "2"
    readme = (fleet / "README.md").read_text()
    folder_name = "server" if role == "server" else "device-0"
    for line in (
        f"sudo python3 -m venv {Path(program).parents[1]}",
        f"sudo mv -T {folder_name} {arguments[2]}",
        f"sudo chown -R fedpbc:fedpbc {arguments[2]}",
        f"sudo systemctl enable --now fedpbc-fleet-{role}",
    ):
        assert line in readme
    yaml = pytest.importorskip("yaml")
    composed = yaml.safe_load((folder / "compose.yaml").read_text())["services"][role]
    assert composed["command"] == ["fleet", role, "/fleet", "--trust"]
    assert composed["volumes"] == [".:/fleet"]
    assert composed.get("ports") == (["8443:8443"] if role == "server" else None)
    # No secret of the folder gets into an image.
    ignored = (folder / ".dockerignore").read_text().splitlines()
    assert ignored[1:] == ["*", "!Dockerfile", "!fedpbc-*.whl", "!fedpbc-*.tar.gz"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("port", [8443, 443])
def test_systemd_accepts_the_units(tmp_path, port):
    ran("fleet", "init", tmp_path / "fleet", *LEAST, "--port", port)
    for folder, role in (("server", "server"), ("device-0", "device")):
        name = f"fedpbc-fleet-{role}.service"
        service = tmp_path / "fleet" / folder / name
        privileged = "CAP_NET_BIND_SERVICE" if (role, port) == ("server", 443) else ""
        bounded = unit(service)["CapabilityBoundingSet"]
        # A device's launcher starts processes of two users.
        assert ("CAP_SETUID" in bounded) == (role == "device")
        assert role == "device" or bounded == privileged
        assert unit(service).get("AmbientCapabilities", "") == privileged
        # The program is not installed on this machine.
        (tmp_path / name).write_text(
            service.read_text().replace("/opt/fedpbc/bin/fedpbc", shutil.which("true"))
        )
        ended = subprocess.run(
            ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True
        )
        assert (ended.returncode, ended.stderr) == (0, "")


def test_the_readme_has_the_real_names(fleet):
    readme = (fleet / "README.md").read_text()
    for name in ("fleet.example.org:8443", "scp -rp server YOU@fleet.example.org:", "device-1"):
        assert name in readme
    assert not re.search(r"[{}]{2}|\{%|%\}", readme)
    assert "None" not in readme
    assert "\n\n\n" not in readme


def test_readme_and_docs_say_what_local_users_can_do(fleet):
    docs = Path(__file__).parents[3] / "docs" / "deployment.md"
    for page in (fleet / "README.md", docs):
        security = page.read_text(encoding="utf-8").split("\n## Security\n")[1].split()
        text = " ".join(security).lower()
        assert "other local users" in text
        assert "runs only the app in its own folder" in text
        assert "in a container there is one user" in text


def test_a_devices_unit_has_two_users_and_a_servers_one(fleet):
    device = unit(fleet / "device-1" / "fedpbc-fleet-device.service")
    assert device["ExecStart"].endswith(" --user fedpbc-app")
    # systemd would hand the folder with the key to root.
    assert "User" not in device
    assert "StateDirectory" not in device
    assert device["ReadWritePaths"] == "/var/lib/fedpbc"
    server = unit(fleet / "server" / "fedpbc-fleet-server.service")
    assert server["User"] == "fedpbc"
    assert "--user" not in server["ExecStart"]
    assert "useradd --system --no-create-home" in (fleet / "README.md").read_text()


def test_the_options_are_saved(fleet):
    options = tomllib.loads((fleet / "init.toml").read_text())
    assert options == {
        "hosts": ["fleet.example.org", "10.0.0.1", "2001:db8::1"],
        "port": 8443,
        "insecure": False,
        "days": 825,
    }


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--host", "a"), "clients is missing"),
        (("--clients", 2), "Missing option '--host'."),
        (("--clients", 0, "--host", "a"), "Invalid value for '--clients'"),
        (("--clients", 2, "--host", "a:1"), "host is 'a:1', but should be a host name or an"),
        (
            ("--clients", 2, "--host", "0.0.0.0"),
            "host is '0.0.0.0', but should be the server's name",
        ),
        ((*LEAST, "--port", 0), "Invalid value for '--port'"),
        ((*LEAST, "--days", 0), "Invalid value for '--days'"),
        ((*LEAST, "--rounds", 0), "rounds is 0, but should be at least 1"),
        ((*LEAST, "--round-seconds", 0), "fleet.round_seconds is 0.0, but should be above 0"),
        ((*LEAST, "--round-seconds", "nan"), "fleet.round_seconds is nan"),
        ((*LEAST, "--algorithm", "fedpb"), "algorithm is 'fedpb', but should be one of"),
        ((*LEAST, "--algorithm", "fedavg_known"), "algorithm is 'fedavg_known', but should be"),
        ((*LEAST, "--data", "digit"), "data.name is 'digit', but should be one of"),
        ((*LEAST, "--app", "nowhere.py"), "app is 'nowhere.py', but should be a Python file that"),
        ((*LEAST, "--app", "bad.py"), "app is 'bad.py', but should be a file with a function data"),
        ((*LEAST, "--app", "ill.py"), "model() fails: NameError: name 'nn' is not defined"),
        ((*LEAST, "--app", "ill.py", "--data", "digits"), "data is 'digits', but should be left"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_written(tmp_path, monkeypatch, options, line):
    (tmp_path / "bad.py").write_text("def model(): pass\n")
    (tmp_path / "ill.py").write_text("def model(): return nn\ndef data(client): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    before = content(tmp_path)
    assert refused(fedpbc("fleet", "init", "new/fleet", *options)).startswith(line)
    assert content(tmp_path) == before


def test_a_folder_that_is_not_empty_is_refused(fleet):
    before = content(fleet)
    assert "should be new or empty" in refused(fedpbc("fleet", "init", fleet, *LEAST))
    assert content(fleet) == before
    file = fleet / "init.toml"
    assert "should be new or empty" in refused(fedpbc("fleet", "init", file, *LEAST))


def test_days_of_a_certificate_that_there_is_not(tmp_path):
    words = ("fleet", "init", tmp_path / "fleet", *LEAST, "--insecure", "--days", 825)
    assert refused(fedpbc(*words)).startswith("--days is 825, but should be left out: without encr")
    assert not (tmp_path / "fleet").exists()


def test_an_empty_folder_stays_the_same_folder(tmp_path, monkeypatch):
    """It may be the working directory of a shell."""
    (tmp_path / "fleet").mkdir()
    monkeypatch.chdir(tmp_path / "fleet")
    ran("fleet", "init", ".", *LEAST)
    assert names(Path()) == [
        "README.md",
        "authority",
        "device-0",
        "device-1",
        "init.toml",
        "server",
    ]
    assert names(tmp_path) == ["fleet"]


def test_a_tilde_in_the_name_of_a_folder_is_a_character(tmp_path, monkeypatch):
    """Whose home it would be is the shell's affair; the app in it is remembered all the same."""
    monkeypatch.chdir(tmp_path)
    ran("fleet", "init", "~root/fleet", *LEAST)
    assert (tmp_path / "~root" / "fleet" / "server" / "app.py").is_file()
    ran("fleet", "status", "~root/fleet/server")


def test_all_or_nothing(tmp_path, monkeypatch):
    calls = []

    def killed(name):
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return b"private", b"public"

    monkeypatch.setattr("fedpbc.deployment.ops.init.generate_node_key", killed)
    fedpbc("fleet", "init", tmp_path / "fleet", *LEAST)
    assert calls == ["client-0", "client-1"]
    assert names(tmp_path) == []


@pytest.mark.parametrize(("algorithm", "expected"), [("fedpbc", False), ("scaffold", True)])
def test_the_readme_says_where_clients_keep_something(tmp_path, algorithm, expected):
    options = ("--clients", 1, "--host", "a", "--algorithm", algorithm)
    ran("fleet", "init", tmp_path / "f", *options)
    readme = (tmp_path / "f" / "README.md").read_text()
    assert ("keep vectors in `/var/lib/fedpbc/device/state`" in readme) is expected
    assert "\n\n\n\n" not in readme


def test_a_configuration_that_advise_or_tune_wrote(tmp_path):
    config = tmp_path / "recommended.toml"
    config.write_text(
        "rounds = 77\nclients = 3\n[algorithm]\nname = 'fedau'\ncutoff = 5\nover = 'heard'\n"
        "[train]\nlearning_rate = 0.2\nglobal_learning_rate = 1.5\nproximal = 0.1\n"
        "[data]\nname = 'digits'\nalpha = 0.5\n[links]\nname = 'markov'\n"
    )
    ran("fleet", "init", tmp_path / "a", "--host", "example.org", "--config", config)
    found = read_fleet(tmp_path / "a/server/fleet.toml").config
    assert found.algorithm == {"name": "fedau", "cutoff": 5, "over": "heard"}
    assert (found.general.rounds, found.general.clients) == (77, 3)
    train = found.train
    assert (train.learning_rate, train.global_learning_rate, train.proximal) == (0.2, 1.5, 0.1)
    assert (found.data.name, found.data.alpha) == ("digits", 0.5)
    # A device is added to it as to any other.
    ran("fleet", "add", tmp_path / "a")
    assert read_fleet(tmp_path / "a/server/fleet.toml").config.general.clients == 4


def test_options_outrank_the_configuration(tmp_path):
    config = tmp_path / "recommended.toml"
    config.write_text("[algorithm]\nname = 'fedau'\ncutoff = 5\n[train]\nlearning_rate = 0.2\n")
    options = ("--config", config, "--clients", 2, "--algorithm", "mifa", "--rounds", 5)
    ran("fleet", "init", tmp_path / "a", "--host", "example.org", *options)
    found = read_fleet(tmp_path / "a/server/fleet.toml").config
    assert (found.algorithm["name"], found.general.rounds) == ("mifa", 5)
    assert found.train.learning_rate == 0.2


def test_a_configuration_that_is_none_of_a_fleet(tmp_path):
    config = tmp_path / "tuned.toml"
    config.write_text("[algorithms.fedau]\ncutoff = 5\n")
    line = refused(fedpbc("fleet", "init", tmp_path / "a", "--host", "a.org", "--config", config))
    assert "a configuration of one algorithm" in line
    config.write_text("algorithm = 'fedau'\n")
    line = refused(fedpbc("fleet", "init", tmp_path / "a", "--host", "a.org", "--config", config))
    assert line.startswith("clients is missing")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("hosts", "listen"),
    [
        (["localhost"], "127.0.0.1:8443"),
        (["::1"], "[::1]:8443"),
        (["localhost", "fleet.example.org"], "0.0.0.0:8443"),
        (["2001:db8::1"], "[::]:8443"),
    ],
)
def test_a_trial_on_one_machine_is_not_reachable_from_others(tmp_path, hosts, listen):
    options = [word for host in hosts for word in ("--host", host)]
    ran("fleet", "init", tmp_path / "fleet", "--clients", 1, *options)
    assert read_fleet(tmp_path / "fleet/server/fleet.toml").fleet.listen == listen
