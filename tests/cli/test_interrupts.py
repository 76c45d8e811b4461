"""Ctrl-C: what there is so far is kept, the exit code is 130, and no traceback is shown."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import chunks, environment, run
from paceline.engine import Stream
from paceline.request_handle import StepOutput

Capture = pytest.CaptureFixture[str]
ENDLESS = ("hello", "-n", "60000", "-c", "60100", "--ignore-eos")
LONG = ("hello", "-n", "40", "--ignore-eos")
next_piece = Stream.__next__


@pytest.fixture
def pressed_after_three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the third piece of every stream is on its way."""
    counts: dict[int, int] = {}

    def pressing(stream: Stream) -> StepOutput:
        counts[id(stream)] = counts.get(id(stream), 0) + 1
        if counts[id(stream)] == 3:
            signal.raise_signal(signal.SIGINT)
        return next_piece(stream)

    monkeypatch.setattr(Stream, "__next__", pressing)


@pytest.mark.usefixtures("pressed_after_three_steps")
def test_the_text_so_far_stays_and_the_summary_counts_it(capsys: Capture, target: Path) -> None:
    done = run(capsys, target, *LONG, "--draft", "none")
    assert done.code == 130
    assert done.out == run(capsys, target, "hello", "-n", "3", "--draft", "none").out
    assert done.err.endswith("tokens/s, plain decoding\n")


@pytest.mark.usefixtures("pressed_after_three_steps")
def test_a_comparison_ends_with_what_it_has(
    capsys: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "paceline.cli.completion.warm_up",
        lambda *_: SimpleNamespace(n_prefilled=0, prompt_tokens_per_second=None),
    )
    record = run(capsys, target, *LONG, "--compare", "--json").json
    assert record["plain"]["stop_reason"] == "interrupted"
    assert (record["drafted"], record["speedup"], record["identical"]) == (None, None, None)
    done = run(capsys, target, *LONG, "--compare")
    assert (done.code, done.err) == (130, "--- plain ---\n")


def test_signal_handling_is_as_before_when_the_command_is_done(capsys: Capture, target: Path) -> None:
    assert run(capsys, target, "hello", "-n", "1").code == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_while_the_program_loads_ends_it_at_once(number: signal.Signals, code: int) -> None:
    script = """
        import sys, time
        import paceline.loading
        from paceline.cli.app import main

        def load(_):
            print("loading", flush=True)
            time.sleep(60)

        paceline.loading.load_options = load
        sys.argv = ["paceline", "run", "hello"]
        main()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, b"", b"")


@pytest.mark.slow
def test_a_signal_outside_of_any_work_ends_the_process_and_what_it_was_writing(tmp_path: Path) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from paceline.cli.interrupts import install_exit_handlers
        from paceline.system.shutdown import scratch_file

        install_exit_handlers()
        with scratch_file(Path(sys.argv[1])):
            print("writing", flush=True)
            time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 1
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


# The program, which writes a byte when it imports the command line.
AT_AN_IMPORT = """
    import os, sys

    def at(event, args):
        if event == "import" and args[0] == "paceline.cli.app":
            os.write(1, bytes(1))

    sys.addaudithook(at)
    from paceline.__main__ import main

    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.9])
def test_an_interrupt_shows_no_traceback_whenever_it_comes(delay: float) -> None:
    """The program handles interrupts from its first import on; before that Python has its own handler."""
    script = textwrap.dedent(AT_AN_IMPORT)
    with subprocess.Popen(
        [sys.executable, "-c", script, "run", *ENDLESS],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == bytes(1)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


@pytest.mark.slow
@pytest.mark.parametrize(("presses", "code"), [("SIGINT, SIGINT", 130), ("SIGTERM,", 143)])
def test_cursor_is_shown_again_when_the_process_ends_during_a_bar(presses: str, code: int) -> None:
    script = f"""
        import time
        from signal import SIGHUP, SIGINT, SIGTERM, raise_signal
        from paceline.cli.interrupts import Interrupts
        from paceline.cli.progress import progress

        with Interrupts() as interrupts, progress({{"work": 2}}, interrupts) as tick:
            tick("work")
            for number in ({presses}):
                raise_signal(number)
            time.sleep(60)
    """
    done, seen = on_a_terminal([sys.executable, "-c", textwrap.dedent(script)])
    assert done == code
    assert HIDDEN in seen
    assert seen.rindex(SHOWN) > seen.rindex(HIDDEN)


def on_a_terminal(args: list[str]) -> tuple[int, bytes]:
    """Run a command on a pseudo-terminal and return its exit code and its output."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        args, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment()
    ) as process:
        os.close(theirs)
        seen = b"".join(chunks(ours))
        os.close(ours)
        return process.wait(timeout=60), seen


AGAIN = """
    with Interrupts() as interrupts:
        interrupts.defer_first()
        signal.raise_signal(signal.SIGINT)
        print(interrupts.pressed, flush=True)
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
"""
IGNORED = """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    install_exit_handlers()
    with Interrupts():
        signal.raise_signal(signal.SIGHUP)
    print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
"""
# As when llama.cpp logs: an exception raised there would be printed by ctypes and forgotten.
FROM_C = """
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def compare(a, b):
        signal.raise_signal(signal.SIGINT)
        return 0

    with Interrupts():
        ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare)
        time.sleep(60)
"""


@pytest.mark.parametrize(
    ("script", "code", "out"),
    [(AGAIN, 130, b"True\n"), (IGNORED, 0, b"True\n"), (FROM_C, 130, b"")],
    ids=["a second interrupt ends it", "what is ignored stays so, as with nohup", "in a callback from C"],
)
def test_signals_end_the_process_at_once_or_are_noted(script: str, code: int, out: bytes) -> None:
    head = (
        "import ctypes, signal, time\nfrom paceline.cli.interrupts import Interrupts, install_exit_handlers\n"
    )
    args = [sys.executable, "-c", head + textwrap.dedent(script)]
    done = subprocess.run(args, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, b"")
