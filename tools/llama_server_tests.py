"""llama.cpp's own server tests against `paceline serve`; they are in llama-cpp-python's source package.

    python -m tools.llama_server_tests [NAME ...]

NAME: chat_completion, completion, ...; by default all of FILES. Prints a line for each test that fails, and
how many passed or were left out, with the reasons. The exit code is 1 if a test fails. Their servers have
models of 260,000 parameters that tell stories; ours has SmolLM2, so what asserts their words is left out.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from time import sleep
from urllib.request import urlopen
from xml.etree import ElementTree

BUILD = Path("build/llama-server-tests")
INSIDE = "vendor/llama.cpp/tools/server/tests/"
PORT = 8080  # where their tests look
KEY = "sk-this-is-the-secret-key"  # theirs
FILES = [
    *("basic", "chat_completion", "completion", "compat_anthropic", "compat_oai_responses", "embedding"),
    *("ignore_eos", "infill", "security", "stream", "template", "tokenize", "tool_call"),
]
OPTIONS = {"security": ["--api-key", KEY, "--cors", "*"]}
WORDS = "assert words, or numbers of tokens, of their models"
START = "start llama-server with an option, a template or a model of their own"
OWN = "ask for something that is llama-server's own: its page's files, resumed streams, its proxy, slots"
IMAGES = "send images"
# By pattern of the test's name; the first that matches.
LEFT_OUT = {
    r"^basic::test_server_models": WORDS,
    r"^basic::test_no_ui|^security::test_access_static|^security::test_cors_proxy|^stream::": OWN,
    r"^basic::": START,
    r"^chat_completion::test_chat_completion(\[|_stream|_with_openai|_cached)": WORDS,
    r"^chat_completion::test_(chat_template|apply_chat|context_size|return_progress)": START,
    r"^chat_completion::test_invalid_chat.*messages7": "want two answers in a row refused",
    r"^completion::test_(nocache_long|completion_unified)": START,
    r"^completion::test_n_probs_stream": "want an event for each token, where drafts give several at once",
    r"^completion::test_n_probs_post": "ask for probabilities after sampling, which are refused",
    r"^completion::test_completion": WORDS,
    r"^compat_anthropic::.*(image|vision)|^security::test_local_media": IMAGES,
    r"^compat_anthropic::test_anthropic_thinking_history|^template::|^infill::": START,
    r"^compat_oai_responses::": WORDS,
    r"^embedding::test_embedding_mixed_input": "want an empty text embedded, which OpenAI refuses, too",
    r"^embedding::test_embedding_pooling_none": START,
    r"^embedding::test_embedding_error_prompt_too_long": "want the words `too large` in the message",
    r"^embedding::.*usage": WORDS,
    r"^ignore_eos::test_ignore_eos_populates": OWN,
    r"^security::test_cors_origins_defaults": START,
    r"^security::test_cors": "compare names of headers by case",
    r"^tokenize::test_tokenize_with_bos": START,
}


def source() -> Path:
    """Return the folder of their tests, which is unpacked once."""
    folder = BUILD / INSIDE
    if folder.exists():
        return folder
    package = f"llama-cpp-python=={version('llama-cpp-python')}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(BUILD),
    ]
    subprocess.run([*command, package], check=True)
    (archive,) = BUILD.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as packed:
        for member in packed:
            inner = member.name.partition("/")[2]
            if inner.startswith(INSIDE) and member.isfile():
                member.name = inner
                packed.extract(member, BUILD, filter="data")
    (folder / "wget.py").write_text("")  # which they import, to download models
    return folder


def run(folder: Path, name: str) -> ElementTree.Element:
    """Run a file of tests against a server of ours; return pytest's report."""
    report = (BUILD / f"{name}.xml").absolute()
    serve = [sys.executable, "-m", "paceline", "serve", "-m", "zoo:smollm2", "--port", str(PORT), "-n", "64"]
    aliases = [
        "--alias",
        "llama-test-model",
        "--alias",
        "*",
        "-c",
        "2048",
        "--temp",
        "0",
        "--sessions",
        "2",
        "--quiet",
    ]
    server = subprocess.Popen([*serve, *aliases, *OPTIONS.get(name, [])], stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            try:
                urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).close()
                break
            except OSError:
                sleep(0.5)
        environment = {**os.environ, "DEBUG_EXTERNAL": "1", "PORT": str(PORT), "PYTHONPATH": "."}
        options = ["-q", "-c", "/dev/null", "--rootdir", ".", "-m", "not slow", "-p", "no:cacheprovider"]
        options += ["-W", "ignore", f"--junitxml={report}", f"unit/test_{name}.py"]
        command = [sys.executable, "-m", "pytest", *options]
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False)
    finally:
        server.terminate()
        server.wait()
    return ElementTree.parse(report).getroot()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FILES))
    folder, reasons, failed = source(), Counter[str](), 0
    for name in parser.parse_args().names or FILES:
        counts = Counter[str]()
        for case in run(folder, name).iter("testcase"):
            title = f"{name}::{case.get('name')}"
            left_out = next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, title)), None)
            bad = next((one for one in case if one.tag in ("failure", "error")), None)
            if case.find("skipped") is not None:
                counts["skipped by themselves"] += 1
            elif bad is None:
                counts["passed"] += 1
            elif left_out is not None:
                counts["left out"] += 1
                reasons[left_out] += 1
            else:
                counts["failed"] += 1
                failed += 1
                print(f"  {title}: {(bad.get('message') or '').splitlines()[:1]}")
        print(f"{name}: {', '.join(f'{n} {what}' for what, n in counts.items())}", flush=True)
    for why, n in reasons.most_common():
        print(f"left out: {n} that {why}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
