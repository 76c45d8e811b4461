"""Whatever ends the process puts right first what it has changed outside of itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT = """
    from paceline.system.leaving import at_leaving, leave, undone

    def say(word):
        return lambda: print(word, flush=True)

    def gone():
        raise OSError

    at_leaving(say("always"))
    with undone(say("over")):
        pass
    with undone(say("first")), undone(gone), undone(say("second")):
        leave(7)
"""


def test_what_is_still_to_be_undone_is_undone_last_things_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "second\nfirst\nalways\n", "")
