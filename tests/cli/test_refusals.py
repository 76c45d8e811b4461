"""Bad input: one clear line on stderr, the right exit code, nothing on stdout, no traceback."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import Done, command, run
from gguf_files import write_llama
from model_stores import ollama_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are not what they should be."""
    folder = tmp_path_factory.mktemp("odd")
    write_llama(folder / "unheard-of.gguf", arch="unheard-of")
    (folder / "text.gguf").write_text("Once upon a time\n")
    (folder / "nothing.txt").write_bytes(b"")
    (folder / "latin-1.txt").write_bytes("café".encode("latin-1"))
    return folder


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("missing.gguf", 2, "give the path of a .gguf model"),
        (".", 1, "is a folder without config.json: name a GGUF file, such as 'text.gguf'"),
        ("text.gguf", 1, "is not a GGUF file"),
        ("unheard-of.gguf", 1, "unheard-of"),
    ],
)
def test_a_file_that_is_no_model_is_refused_as_target_and_as_draft(
    capsys: Capture, target: Path, odd: Path, name: str, code: int, words: str
) -> None:
    run(capsys, odd / name, "hi").refused(code, str(odd / name), words)
    run(capsys, target, "-md", odd / name, "hi").refused(code, str(odd / name), words)


@pytest.mark.parametrize("args", [("run", "hi", "-m"), ("doctor", "-m")])
def test_a_transformers_model_without_pytorch_is_one_line_that_says_what_to_install(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("paceline.backends.transformers.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = command(capsys, *args, f"hf:{tmp_path}")
    last = done.err.splitlines()[-1]
    assert done.code == 1
    assert last.startswith("paceline: transformers models need PyTorch and transformers")
    assert last.endswith("pip install 'paceline[hf]'")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["run", "-m", "PIPE", "hi"], 1),
        (["run", "-m", "TARGET", "-md", "PIPE", "hi"], 1),
        (["run", "-m", "/dev/zero", "hi"], 1),
        (["transplant", "PIPE", "--vocab-of", "TARGET", "-o", "out.gguf"], 1),
        (["run", "-m", "TARGET", "--record", "PIPE", "hi"], 2),
        (["replay", "PIPE"], 2),
    ],
)
def test_a_named_pipe_where_a_file_has_to_be_is_refused_and_holds_nobody_up(
    capsys: Capture, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    given = [{"PIPE": "pipe", "TARGET": str(target)}.get(arg, arg) for arg in args]
    signal.alarm(60)  # ends a test that waits for the other end of a pipe
    done = command(capsys, *given)
    signal.alarm(0)
    done.refused(code, "/dev/zero" if "/dev/zero" in args else "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_gpu_layers_stay_on_the_cpu_without_a_gpu_build(capsys: Capture, target: Path) -> None:
    done = run(capsys, target, "hi", "-n", "2", "--draft", "none", "--json", "-ngl", "99")
    assert done.err.startswith("paceline: gpu_layers (-ngl) 99: the engine was built without a GPU")
    assert (done.err.count("\n"), done.json["n_tokens"]) == (1, 2)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([""], "the prompt is empty"),
        (["-f", "{odd}/nothing.txt"], "nothing.txt: the file is empty"),
        ([], "stdin: the prompt is empty"),
        (["-f", "{odd}/missing.txt"], "missing.txt: cannot be read (No such file or directory)"),
        (["-f", "{odd}/latin-1.txt"], "latin-1.txt: is not UTF-8 text (byte 3)"),
        (["hi", "-p", "ho"], "more than one prompt"),
        (["hi\udcff"], "the prompt is not UTF-8 text (character 2)"),
        (["hello", "-c", "4"], "the prompt has 5 tokens, the context 4"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused(
    capsys: Capture, target: Path, odd: Path, args: list[str], words: str
) -> None:
    run(capsys, target, *(arg.format(odd=odd) for arg in args)).refused(2, words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("-n many", "'-n' / '--n-predict'"),
        ("-c 4294967297", "a context of 4,294,967,297 tokens: at most 2,147,483,647"),
        ("--draft none --compare", "nothing to compare"),
        ("--logit-bias 13=much", "--logit-bias 13=much: write TOKEN=BIAS"),
        ("--logprobs 3", "--logprobs: prints with --json only; add it"),
        ("--xyzzy", "No such option: --xyzzy; see paceline run --help"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(capsys: Capture, target: Path, args: str, words: str) -> None:
    run(capsys, target, "hi", *args.split()).refused(2, words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("runn", "Did you mean 'run'?; see paceline --help"),
        ("bench --suite real-cod", "did you mean real-code"),
        ("run hi -m ./targt.gguf", "did you mean target.gguf?"),
        ("run hi -m ollama:lama3.2:3b", "did you mean ollama:llama3.2:3b?"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    capsys: Capture, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: str, words: str
) -> None:
    (tmp_path / "target.gguf").symlink_to(target)
    ollama_model(tmp_path / "ollama", "registry.ollama.ai/library/llama3.2/3b", target)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.chdir(tmp_path)
    done = command(capsys, *args.split())
    assert (done.code, done.out) == (2, "")
    assert words in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("run hi -jf nothing -j {}", "more than one JSON schema"),
        ("run hi --regex a --ignore-eos", "ignore_eos"),
        ("run hi -md nothing.gguf", "nothing.gguf: no such file"),
        ("run hi --record .", "--record"),
        ("chat --draft magic", "unknown drafter"),
        ("bench --corpus nothing", "no corpus"),
        ("bench --suite nothing", "unknown suite"),
        ("bench --record none/t.jsonl", "cannot be written"),
        ("certify --prompts nothing", "cannot be read"),
        ("certify --draft none", "nothing to certify"),
        ("serve --port 99999", "--port"),
        ("serve --host nowhere.invalid", "cannot listen"),
        ("serve --body-limit inf", "body_limit inf: must be between"),
        ("serve --trusted-proxy nginx", "the trusted proxy nginx"),
        ("serve --api-key ü", "an API key must be printable ASCII"),
        ("serve --api-key-file nothing", "cannot be read"),
        ("serve --top-p 2", "top_p"),
        ("serve --replicas 1 --port 0", "name a port"),
        ("serve --replicas 4..2", "replicas '4..2'"),
    ],
)
def test_what_needs_no_model_is_refused_before_one_is_opened(
    capsys: Capture, target: Path, monkeypatch: pytest.MonkeyPatch, args: str, words: str
) -> None:
    def opened(*_: object, **__: object) -> None:
        pytest.fail("a model was opened")

    monkeypatch.setattr("paceline.loading.open_engine", opened)
    name, *rest = args.split()
    done = command(capsys, name, "-m", target, *rest)
    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_a_context_that_memory_cannot_hold_is_refused_before_it_is_made(
    capsys: Capture, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux would grant it, and kill the process later."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=900_000_000))
    monkeypatch.setattr("psutil.swap_memory", lambda: SimpleNamespace(free=100_000_000))
    words = "of 10,000,000 tokens needs 2.56 GB of memory, 1.00 GB are free: ask for fewer (n_ctx, -c)"
    run(capsys, target, "-c", "10000000", "hi").refused(1, words)


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (MemoryError(), 1, "paceline: out of memory: ask for less with -c, or use a smaller model\n"),
        (PermissionError(13, "Permission denied", "x.gguf"), 1, "paceline: x.gguf: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_goes_wrong_anywhere_is_one_line_and_a_code(
    capsys: Capture, target: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, err: str
) -> None:
    def failing(*_: object) -> str:
        raise error

    monkeypatch.setattr("paceline.cli.run.read_prompt", failing)
    assert run(capsys, target, "hi") == Done(code, "", err)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device here")  # noqa: PTH110
@pytest.mark.parametrize("args", [["-f", "/dev/zero"], ["--messages", "/dev/zero"]])
def test_an_endless_file_is_refused_before_memory_fills(
    capsys: Capture, target: Path, args: list[str]
) -> None:
    run(capsys, target, *args).refused(2, "/dev/zero: has more than 64 MiB")
