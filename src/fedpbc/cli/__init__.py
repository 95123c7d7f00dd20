"""The command line: one module per command; each parses, calls and prints."""

__all__ = ["main"]


def main() -> None:
    """Run the command ``fedpbc``."""
    from fedpbc.cli.app import main

    main()
