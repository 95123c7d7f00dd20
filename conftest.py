"""Modules that cannot be imported, and so not be looked through for examples, without an extra."""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("flwr")
    else [
        "src/fedpbc/deployment/device/client_app.py",
        "src/fedpbc/deployment/server/transport.py",
        "src/fedpbc/deployment/protocol/records.py",
        "src/fedpbc/deployment/server/server_app.py",
    ]
)
