"""The process that Flower starts on a device for every message: ``flwr-clientapp``.

Flower's own command first imports its whole SuperNode, database and web server included: a third of
what a message costs a device. This process imports only what it needs.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command ``flwr-clientapp``, with the options that Flower passes."""
    import argparse

    from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    parser = argparse.ArgumentParser(prog="flwr-clientapp")
    parser.add_argument("--runtime-api-address", required=True)
    add_args_flwr_app_common(parser=parser)
    options = parser.parse_args()
    run_clientapp(
        runtime_api_address=options.runtime_api_address,
        token=try_obtain_flwr_app_token(options),
        insecure=options.insecure,
        certificates=validate_and_resolve_root_certificates(
            options.root_certificates, options.insecure
        ),
        parent_pid=options.parent_pid,
        runtime_dependency_install=options.runtime_dependency_install,
    )


if __name__ == "__main__":
    main()
