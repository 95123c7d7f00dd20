from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedpbc.deployment.device.settings import DeviceSettings, read_device
from fedpbc.deployment.settings import FleetSettings
from fedpbc.errors import InputError

MINIMAL = 'client = 3\nserver = "fleet.example.org:8443"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "device.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults(tmp_path):
    settings = read_device(write(tmp_path, MINIMAL))
    assert settings == DeviceSettings(client=3, server="fleet.example.org:8443")
    assert (settings.app, settings.data_dir) == (None, None)
    assert (settings.catch_up, settings.device) == ("clock", "cpu")


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    for name in ("mine.py", "rule.py"):
        (tmp_path / "there" / name).touch()
    (tmp_path / "pictures").mkdir()
    extra = f'app = "mine.py"\ndata_dir = "{tmp_path}/pictures"\ncatch_up = "lazy"\ndevice = "cuda"'
    extra += '\nplugins = ["rule.py"]'
    write(tmp_path / "there", MINIMAL + extra)
    # Wherever it is read from, and by a relative path as well.
    monkeypatch.chdir(tmp_path)
    assert read_device(Path("there/device.toml")) == DeviceSettings(
        client=3,
        server="fleet.example.org:8443",
        app=str(tmp_path / "there/mine.py"),
        plugins=[str(tmp_path / "there/rule.py")],
        data_dir=str(tmp_path / "pictures"),
        catch_up="lazy",
        device="cuda",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('server = "a:1"', "client is missing: it has no default"),
        ("client = 0", "server is missing: it has no default"),
        ('client = -1\nserver = "a:1"', "client is -1, but should be at least 0"),
        ('client = "1"\nserver = "a:1"', "client is '1', but should be a valid integer"),
        ('client = true\nserver = "a:1"', "client is True, but should be a valid integer"),
        ('client = 0\nserver = "a"', "server is 'a', but should be host:port, as "),
        ("client = 0\nserver = 8443", "server is 8443, but should be a valid string"),
        (
            'client = 0\nserver = "0.0.0.0:8443"',
            "server is '0.0.0.0:8443', but should be the server's address as the device sees it",
        ),
        (MINIMAL + 'catch_up = "never"', "catch_up is 'never', but should be 'clock' or 'lazy'"),
        (MINIMAL + 'apps = "a.py"', "apps is unknown: use one of client, server, app, "),
        (MINIMAL + 'app = "a.py"', "app is 'a.py', but should be a Python file that exists in "),
        (MINIMAL + 'plugins = ["a.py"]', "plugins is 'a.py', but should be Python files that "),
        (MINIMAL + 'plugins = "a.py"', "plugins is 'a.py', but should be "),
        (MINIMAL + "plugins = [1]", "plugins is "),
        (MINIMAL + 'data_dir = "d"', "data_dir is 'd', but should be a folder that exists"),
        ("client =", "configuration: "),
    ],
)
def test_wrong_files_are_one_line(tmp_path, text, line):
    with pytest.raises(InputError) as caught:
        read_device(write(tmp_path, text))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"device\.toml', but should be a file that exists"):
        read_device(tmp_path / "device.toml")


def test_it_is_read_without_torch(tmp_path):
    path = write(tmp_path, MINIMAL)
    code = (
        "import sys; from pathlib import Path; from fedpbc.deployment.device.settings import *; "
        "read_device(Path(sys.argv[1])); print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == "False False\n"


def test_where_the_server_listens():
    def listen(**fleet):
        return FleetSettings.from_dict({"clients": 3, "fleet": fleet}).fleet.listen

    assert listen() == "0.0.0.0:8443"
    assert listen(listen="[::]:443") == "[::]:443"
    with pytest.raises(InputError, match=r"^fleet\.listen is '8443', but should be host:port"):
        listen(listen="8443")
