"""A program that looks like llama-server from outside, and fails in the way that its last argument names."""

from __future__ import annotations

import sys
import time
from pathlib import Path

XLLAMACPP = str(Path(__file__).parents[1] / "benchmarks" / "xllamacpp_server.py")
PIECE = '{"content":"a","tokens":[7],"stop":false,"tokens_predicted":%d}'


def write_fake_server(path: Path, mode: str) -> Path:
    """An executable that runs this file with `mode` added to its arguments."""
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} "$@" {mode}\n')
    path.chmod(0o755)
    return path


def main() -> None:
    mode = sys.argv[-1]
    if "--version" in sys.argv:
        print("ggml: found 0 devices\nversion: 9596 (18ef86ece)\nbuilt with Clang 20.1.8")
        return
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            self.send_response(200 if mode != "loads" else 503)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            for n in (1, 2, 3):
                self.wfile.write(b"data: " + (PIECE % n).encode() + b"\n\n")
            self.wfile.flush()
            if mode == "hangs":
                time.sleep(60)
            if mode == "dies":
                print("ggml_abort: out of luck", file=sys.stderr, flush=True)
                sys.stdout.flush()
                import os

                os.kill(os.getpid(), 11)
            if mode.startswith("says:"):
                self.wfile.write(Path(mode.removeprefix("says:")).read_bytes())
            if mode == "garbage":
                self.wfile.write(b"Segmentation fault (core dumped)\n")

    server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    print("main: model loaded", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
