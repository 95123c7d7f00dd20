from __future__ import annotations

import stat
import sys
import tomllib
from pathlib import Path

import pytest

from fedpbc.deployment.address import Address
from fedpbc.deployment.ops import flower_commands
from fedpbc.deployment.ops.flower_commands import FlowerCommands
from fedpbc.errors import InputError, MissingExtraError


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """Whether or not Flower is installed."""
    monkeypatch.setattr(flower_commands, "flower_program", lambda name: name)


@pytest.fixture
def secure(tmp_path):
    (tmp_path / "certificates").mkdir()
    (tmp_path / "certificates/ca.crt").touch()
    return FlowerCommands(tmp_path / "home", Address("10.0.0.1", 8443), tmp_path / "certificates")


def test_a_fleet_needs_flower(monkeypatch):
    monkeypatch.setattr(flower_commands, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedpbc\[flower\]'"):
        flower_commands.require_flower()


def test_running_without_tls_needs_insecure(tmp_path):
    with pytest.raises(InputError, match="or --insecure, and not both"):
        FlowerCommands(tmp_path, Address("10.0.0.1", 8443))
    with pytest.raises(InputError, match="and not both"):
        FlowerCommands(tmp_path, Address("10.0.0.1", 8443), tmp_path, insecure=True)
    with pytest.raises(InputError, match=r"a folder with ca\.crt"):
        FlowerCommands(tmp_path, Address("10.0.0.1", 8443), tmp_path)


def test_a_secure_fleet_has_tls_and_node_keys(secure, tmp_path):
    link = secure.superlink(tmp_path / "s.db")
    assert "--enable-supernode-auth" in link
    assert {"--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile"} <= set(link)
    with pytest.raises(InputError, match="key is missing"):
        secure.supernode(tmp_path / "trainer", 9100)
    node = secure.supernode(tmp_path / "trainer", 9100, tmp_path / "node0")
    for command in (link, node, secure.superexec()):
        assert "--insecure" not in command


def test_an_ipv6_address_has_brackets(tmp_path):
    commands = FlowerCommands(tmp_path / "home", Address("2001:db8::1", 8443), insecure=True)
    node = commands.supernode(tmp_path / "trainer", 9100)
    assert node[node.index("--superlink") + 1] == "[2001:db8::1]:8443"


def test_every_command_of_an_insecure_fleet_says_so(tmp_path):
    commands = FlowerCommands(tmp_path / "home", Address("10.0.0.1", 8443), insecure=True)
    node = commands.supernode(tmp_path / "trainer", 9100)
    for command in (commands.superlink(tmp_path / "s.db"), node, commands.superexec()):
        assert "--insecure" in command
    commands.prepare_server()
    config = tomllib.loads((tmp_path / "home/config.toml").read_text())
    assert config["superlink"]["fleet"] == {"address": "10.0.0.1:8443", "insecure": True}


def test_the_environment_disables_telemetry_and_installation(secure):
    environment = secure.environment({"FLWR_TELEMETRY_ENABLED": "1", "PATH": "/bin"})
    programs = Path(sys.executable).parent
    assert environment == {
        # Our own commands first, then those of this installation.
        "PATH": f"{secure.home}/bin:{programs}:/bin",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(secure.home),
    }


def test_special_characters_survive_flowers_configuration(secure, tmp_path):
    odd = tmp_path / 'a "quoted" name\\'
    command = secure.supernode(odd, 9100, tmp_path / "node0")
    config = tomllib.loads(command[command.index("--node-config") + 1])
    assert config == {"trainer": str(odd)}


def test_certificates_and_keys_are_valid_and_secrets_private(tmp_path):
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    from fedpbc.deployment.security.keys import make_certificates, make_node_key

    make_certificates(tmp_path, ["fleet.example.org", "10.0.0.1"])
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fleet.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "127.0.0.1"]
    key = make_node_key(tmp_path, "node0")
    load_ssh_private_key(key.read_bytes(), None)
    assert (tmp_path / "node0.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    for secret in ("server.key", "node0"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600
