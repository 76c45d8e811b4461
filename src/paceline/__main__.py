"""The program. From here on Ctrl-C ends it without a traceback: to import the rest takes a while."""

import os
import signal


def end(number: int, _frame: object, leave=os._exit) -> None:  # type: ignore[no-untyped-def]
    """Its own `os._exit`, because it may be called when Python has taken the modules apart."""
    leave(128 + number)


def main() -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # it is not ignored, as a background job's
        signal.signal(signal.SIGINT, end)
    from paceline.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
