"""Weights of a type stay with ggml where it has AMX and is faster by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from command_line import environment
from gguf_files import write_llama
from paceline.backends.llama_cpp.kernels import amx
from quantised import quantised


class Clock:
    """Seconds of a machine whose AMX has types that take `share` of our time."""

    def __init__(self, **share: float) -> None:
        self.share, self.asked = share, 0
        self.names = {number: name for name, number in amx.TYPES.items()}

    def __call__(self, number: int, rows: int, buffer: str) -> float:
        self.asked += 1
        if buffer == amx.OWN_KERNELS:
            return 0.001 * rows
        return self.share.get(self.names[number], -1.0) * 0.001 * rows


def test_a_type_is_left_where_it_is_clearly_faster_there(tmp_path: Path) -> None:
    clock = Clock(Q4_0=1.3, Q8_0=0.7, Q4_K=0.95, F16=0.5)
    assert amx.types_faster_with_amx(clock, tmp_path / "a.so") == ("F16", "Q8_0")


def test_what_was_found_is_kept_for_this_processor_and_this_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, library = Clock(Q8_0=0.7), tmp_path / "a.so"
    assert amx.types_faster_with_amx(clock, library) == ("Q8_0",)
    assert "this once" in capsys.readouterr().err
    clock.asked = 0
    assert amx.types_faster_with_amx(clock, library) == ("Q8_0",)
    assert clock.asked == 0
    monkeypatch.setattr(amx, "cpu_name", lambda: "another one")
    assert amx.types_faster_with_amx(Clock(Q8_0=2.0), library) == ()
    assert amx.types_faster_with_amx(Clock(Q8_0=0.7), tmp_path / "b.so") == ("Q8_0",)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there are no kernels for Windows")
def test_a_type_that_is_left_is_ggmls_and_rows_are_not_claimed_to_be_equal(tmp_path: Path) -> None:
    path = quantised(write_llama(tmp_path / "f32.gguf", width=256), tmp_path / "model.gguf", Type.Q4_0)
    code = (
        "import sys; from pathlib import Path; "
        "from paceline.backends.llama_cpp import LlamaTarget, gate, kernels; gate.in_load_subprocess = True; "
        "kernels.amx.types_faster_with_amx = lambda *_: sys.argv[2:]; status = kernels.load_kernels(); "
        "target = LlamaTarget(Path(sys.argv[1]), n_ctx=64); print(status.path, target.caps.equal_rows)"
    )
    for left, end in (([], " True"), (["Q8_0"], " (Q8_0 by AMX) True"), (["Q4_0"], " (Q4_0 by AMX) False")):
        program = [sys.executable, "-c", code, str(path), *left]
        done = subprocess.run(program, capture_output=True, text=True, env=environment(), check=False)
        if " True" not in done.stdout and not left:
            pytest.skip(done.stdout + done.stderr)
        assert done.stdout.endswith(end + "\n"), done.stdout + done.stderr
