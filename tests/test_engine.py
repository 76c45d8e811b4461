"""One loaded model in several threads and processes, and under Ctrl-C."""

from __future__ import annotations

import dis
import gc
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import paceline
from paceline.api import LLM
from paceline.speculative.errors import BusyError, UsageError

EXACT: dict[str, Any] = {"threads": 1, "flash_attention": False, "cache_type": "f32", "n_ctx": 128}
TREES: dict[str, Any] = {"drafters": "lookup,model", "width": 3, "p_split": 0.01, "p_min": 0.0}
PATIENCE = 60.0  # seconds after which a test that hangs fails


def load(models: Path, sessions: int, **settings: Any) -> LLM:
    given = EXACT | TREES | settings
    return paceline.load(models / "target.gguf", models / "draft.gguf", sessions=sessions, **given)


def free(llm: LLM) -> int:
    return sum(slot.is_free for slot in llm.target.cache.slots)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Errand:
    """A request that is left after some outputs: closed, dropped, or by an error."""

    prompt: list[int]
    leave_after: int | None
    how: str
    request: dict[str, Any] = field(default_factory=dict)

    def run(self, llm: LLM) -> str:
        """Run the request, and return its outcome as text."""
        try:
            stream = llm.stream(self.prompt, ignore_eos=True, **self.request)
        except BusyError:
            raise
        except UsageError as error:
            return str(error)
        try:
            for n, _ in enumerate(stream, 1):
                if n == self.leave_after:
                    if self.how == "raised":
                        raise ValueError
                    break
        except ValueError:
            pass
        tokens = stream.result().tokens
        if self.how == "closed":
            stream.close()
        return f"{self.how} {tokens}"


def errands(n: int) -> list[Errand]:
    """Return requests with unique first tokens, so that passes have the same shapes as alone."""
    draw = random.Random(1)
    made = []
    for i in range(n):
        prompt = [i + 2, *(draw.randrange(258) for _ in range(draw.randrange(20)))]
        request: dict[str, Any] = {"max_tokens": draw.randint(1, 24), "seed": i}
        if draw.random() < 0.5:
            request |= {"temperature": 0.8, "top_k": draw.choice([0, 40])}
        if draw.random() < 0.2:
            request["logprobs"] = 2
        if draw.random() < 0.1:
            prompt = prompt * 128  # does not fit the context
        leave = draw.randint(1, 4) if draw.random() < 0.4 else None
        made.append(Errand(prompt, leave, draw.choice(["closed", "dropped", "raised"]), request))
    return made


@pytest.mark.parametrize("sessions", [1, 3])
def test_a_hundred_threads_get_what_each_would_get_alone(models: Path, sessions: int) -> None:
    todo = errands(100)
    with load(models, sessions) as llm:
        alone = [errand.run(llm) for errand in todo]
        llm.target.forget()
        with ThreadPoolExecutor(100) as threads:
            together = list(threads.map(lambda errand: errand.run(llm), todo))
        assert together == alone
        assert llm.generate([1], max_tokens=3, ignore_eos=True).n_tokens == 3
        assert free(llm) == sessions
        assert llm.target.cache.branches.count(None) == len(llm.target.cache.branches)  # type: ignore[attr-defined]
    assert len({text.split()[0] for text in alone}) == 4  # all ways to leave were among them


def test_threads_that_take_turns_on_one_stream_lose_none_of_its_pieces(models: Path) -> None:
    with load(models, 1) as llm:
        right = llm.generate([5, 6, 7], max_tokens=60, ignore_eos=True)
        stream = llm.stream([5, 6, 7], max_tokens=60, ignore_eos=True)
        with ThreadPoolExecutor(4) as threads:
            pieces = [piece for part in threads.map(lambda _: list(stream), range(4)) for piece in part]
        assert sum(len(piece.tokens) for piece in pieces) == 60
        assert stream.result().tokens == right.tokens


def test_a_thread_that_has_a_stream_open_is_told_so_and_does_not_wait_for_itself(models: Path) -> None:
    with load(models, 1) as llm, llm.stream([1, 2], max_tokens=9, ignore_eos=True) as stream:
        next(stream)
        with pytest.raises(BusyError, match="all 1 sessions of this model are in use"):
            llm.generate([1], max_tokens=2)
        assert len(list(stream)) >= 1
        assert llm.generate([1], max_tokens=2, ignore_eos=True).n_tokens == 2


def test_another_thread_gets_the_session_of_a_dropped_stream(models: Path) -> None:
    with load(models, 1) as llm:
        stream = llm.stream([1, 2], max_tokens=9, ignore_eos=True)
        next(stream)
        with ThreadPoolExecutor(1) as other:
            answer = other.submit(llm.generate, [3], max_tokens=4, ignore_eos=True)
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.1)
            del stream  # nobody calls the model from here on
            assert answer.result(PATIENCE).n_tokens == 4


def test_ctrl_c_while_waiting_for_a_session_loses_nothing(models: Path) -> None:
    with load(models, 1) as llm, ThreadPoolExecutor(1) as other:
        stream = other.submit(llm.stream, [1, 2], max_tokens=9, ignore_eos=True).result(PATIENCE)
        for _ in range(3):
            threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                llm.generate([3], max_tokens=4, ignore_eos=True)
        assert free(llm) == 0
        other.submit(stream.close).result(PATIENCE)
        assert llm.generate([3], max_tokens=4, ignore_eos=True).n_tokens == 4


FORKED = """
    import os, sys, threading
    import paceline

    def main(models, threads):
        llm = paceline.load(models + "/target.gguf", models + "/draft.gguf", "lookup,model",
                            threads=int(threads), sessions=2,
                            flash_attention=False)
        stream = llm.stream([1, 2], max_tokens=90, ignore_eos=True)
        next(stream)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                llm.generate([3, 4], max_tokens=20, ignore_eos=True)
        other = threading.Thread(target=work)
        other.start()
        for _ in range(5):  # in whatever the other thread is doing at that moment
            child = os.fork()
            if child == 0:
                said = []
                for call in (lambda: llm.generate([1]), lambda: next(stream), lambda: llm.target.open(),
                             stream.result, lambda: paceline.load(models + "/target.gguf")):
                    try:
                        call()
                    except paceline.PacelineError as error:
                        said.append(str(error))
                stream.close()
                llm.close()
                del stream, llm
                os._exit(0 if len(said) == 5 and all("forked" in one for one in said) else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        other.join()
        assert llm.generate([3, 4], max_tokens=5, ignore_eos=True).n_tokens == 5
        stream.close()
        llm.close()
        print("fine")

    main(*sys.argv[1:])
"""


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="needs fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_is_told_that_the_model_cannot_be_used_in_it(models: Path, threads: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FORKED), str(models), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert (done.stdout, done.stderr) == ("fine\n", "")


# Python checks for signals after these instructions.
LOOKS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")}


def interrupted_at(place: int, work: Callable[[], None]) -> int:
    """Run `work` with Ctrl-C at the `place`th check for signals in Paceline's code (0: never).

    Return the number of checks."""
    came = 0
    before: dict[FrameType, int] = {}  # the instruction that a frame ran last

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal came
        if "paceline" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            last = before.get(frame, 0)
            before[frame] = frame.f_lasti
            if frame.f_code.co_code[last] in LOOKS:
                came += 1
                if came == place:
                    sys.settrace(None)
                    before.clear()
                    raise KeyboardInterrupt
        return trace

    others = sys.gettrace()
    gc.disable()  # Python swallows an exception in a `__del__`, and the collector runs at any place
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(others)
        gc.enable()
    return came


def test_ctrl_c_at_any_place_loses_no_session_and_no_later_answer(models: Path) -> None:
    with load(models, 1) as llm:

        def answer() -> list[int]:
            return list(llm.generate([9, 8, 7, 9, 8], max_tokens=6, ignore_eos=True).tokens)

        def work() -> None:
            with llm.stream([4, 5, 6, 4, 5], max_tokens=4, ignore_eos=True) as stream:
                for _ in stream:
                    pass

        right, all_ = answer(), interrupted_at(0, work)
        assert all_ > 500
        for place in [*range(1, 150), *range(150, all_, 17), *range(all_ - 80, all_ + 1)]:
            assert interrupted_at(place, work) >= min(place, all_ - 9)  # the last run may be a little shorter
            llm.target.forget()
            assert answer() == right, place
            assert free(llm) == 1, place
            assert llm.draft is not None
            assert all(slot.is_free for slot in llm.draft.cache.slots), place  # type: ignore[attr-defined]
            assert llm.target.cache.branches.count(None) == len(llm.target.cache.branches), place  # type: ignore[attr-defined]
