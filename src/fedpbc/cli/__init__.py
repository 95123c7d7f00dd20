"""The command line: one module per command; each parses, calls and prints."""

__all__ = ["main"]


def main() -> None:
    """Run the command ``fedpbc``."""
    import sys

    from fedpbc import interrupts

    try:
        with interrupts.handled():
            try:
                from fedpbc.cli.app import main
            except KeyboardInterrupt:
                sys.stderr.write("fedpbc: interrupted; nothing was written\n")
                sys.exit(interrupts.exit_code())
            main()
    except SystemExit as ending:
        if interrupts.arrived():
            interrupts.exit_quickly(int(ending.code or 0))
        raise
    finally:
        interrupts.end_at_once()
