"""The process that Flower starts on a device for every message: ``flwr-clientapp``.

Flower's own command imports its whole SuperNode first, database and web server included, which is
a third of what a message costs a device. This one imports what it needs.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The command ``flwr-clientapp``, with the options that Flower gives it."""
    import argparse

    from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    parser = argparse.ArgumentParser(prog="flwr-clientapp")
    parser.add_argument("--runtime-api-address", required=True)
    add_args_flwr_app_common(parser=parser)
    given = parser.parse_args()
    run_clientapp(
        runtime_api_address=given.runtime_api_address,
        token=try_obtain_flwr_app_token(given),
        insecure=given.insecure,
        certificates=validate_and_resolve_root_certificates(
            given.root_certificates, given.insecure
        ),
        parent_pid=given.parent_pid,
        runtime_dependency_install=given.runtime_dependency_install,
    )


if __name__ == "__main__":
    main()
