"""For the tests and for the examples in the sources alike."""

from __future__ import annotations

import signal
from importlib.util import find_spec

# These cannot be imported without the extra, and so not be searched for examples.
collect_ignore = (
    []
    if find_spec("flwr")
    else [
        "src/fedpbc/deployment/device/node_process.py",
        "src/fedpbc/deployment/protocol/flower_messages.py",
        "src/fedpbc/deployment/protocol/records.py",
        "src/fedpbc/deployment/server/fleet_api.py",
        "src/fedpbc/deployment/server/fleet_endpoint.py",
        "src/fedpbc/deployment/server/server_process.py",
        "src/fedpbc/flower",
    ]
)

# A background job (`nohup make test &`) starts with SIGINT ignored, and what is ignored stays so in
# every process started from it: tests that press Ctrl-C would wait for ever. With a handler here,
# children start with the default again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
