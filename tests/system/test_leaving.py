"""Whatever ends the process puts right first what it has changed outside of itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT = """
    from paceline.system.leaving import cleanup_on_exit, exit_now, register_cleanup

    def say(word):
        return lambda: print(word, flush=True)

    def gone():
        raise OSError

    register_cleanup(say("always"))
    with cleanup_on_exit(say("over")):
        pass
    with cleanup_on_exit(say("first")), cleanup_on_exit(gone), cleanup_on_exit(say("second")):
        exit_now(7)
"""


def test_what_is_still_to_be_undone_is_undone_last_things_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "second\nfirst\nalways\n", "")
