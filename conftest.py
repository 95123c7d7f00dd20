"""Modules that cannot be imported, and so not be looked through for examples, without an extra."""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("flwr")
    else [
        "src/fedpbc/flower/client_app.py",
        "src/fedpbc/flower/post.py",
        "src/fedpbc/flower/records.py",
        "src/fedpbc/flower/server_app.py",
    ]
)
