"""The program. Ctrl-C during the slow imports ends it without a traceback."""

import os
import signal


def end(number: int, _frame: object, leave=os._exit) -> None:  # type: ignore[no-untyped-def]
    """Exit. `os._exit` is a default argument because modules may be cleared by then."""
    leave(128 + number)


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # background jobs ignore it
        signal.signal(signal.SIGINT, end)
    from paceline.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
