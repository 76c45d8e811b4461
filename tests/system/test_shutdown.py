"""What ends the process puts right what it has changed; scratch files go away with the work, or later."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from paceline.system import shutdown
from paceline.system.shutdown import NAME, remove_leftovers, scratch_file, scratch_folder

SCRIPT = """
    from paceline.system.shutdown import cleanup_on_exit, exit_now, register_cleanup

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


WORKER = """
import sys, time
from pathlib import Path
from paceline.system.shutdown import scratch_file, scratch_folder
folder = Path(sys.argv[1])
with scratch_file(folder) as file, scratch_folder(folder) as inside:
    file.write_bytes(b"half")
    (inside / "deep").mkdir()
    (inside / "deep" / "text").write_bytes(b"half")
    print(file.name, inside.name, flush=True)
    time.sleep(600)
"""


def worker(folder: Path) -> tuple[subprocess.Popen[str], set[str]]:
    """A process that works on a file and a folder in `folder`, and what they are called."""
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, set(process.stdout.readline().split())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_is_there_for_as_long_as_it_is_worked_on(tmp_path: Path) -> None:
    with scratch_file(tmp_path) as file, scratch_folder(tmp_path) as folder:
        (folder / "text").write_bytes(b"half")
        assert file.read_bytes() == b""
        assert names(tmp_path) == {file.name, folder.name}
        assert all(NAME.fullmatch(name) for name in names(tmp_path))
    assert names(tmp_path) == set()


def age(path: Path, seconds: float = shutdown.MAX_AGE_SECONDS + 60) -> None:
    then = path.lstat().st_mtime - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def test_what_a_killed_process_left_is_removed_after_two_days(tmp_path: Path) -> None:
    killed, left = worker(tmp_path)
    killed.kill()
    killed.communicate()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == left
    for path in tmp_path.iterdir():
        age(path)
    with scratch_file(tmp_path) as file:
        age(file)
        remove_leftovers(tmp_path)  # a file that is still worked on stays
        assert names(tmp_path) == {file.name}


def test_files_of_other_names_and_links_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / ".paceline-0123456789abcdef.tmp").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / ".paceline-0123456789abcdee.tmp")
    for name in (".paceline-x.tmp", "x.paceline.incomplete", ".paceline-0123456789abcdef.tmp.gguf"):
        (tmp_path / name).write_bytes(b"mine")
    for path in tmp_path.iterdir():
        age(path)
    before = names(tmp_path)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == before
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_process_that_ends_without_unwinding_takes_its_own_along(tmp_path: Path) -> None:
    script = WORKER.replace("time.sleep(600)", "shutdown.remove_all(); os._exit(3)")
    script = "import os\nfrom paceline.system import shutdown\n" + script
    lives, living = worker(tmp_path)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")
    assert names(tmp_path) == living
    lives.kill()
    lives.communicate()
