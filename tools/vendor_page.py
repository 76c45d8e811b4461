"""Fetch the libraries of the server's page and of reports from the npm registry, into the folders page/vendor
of src/paceline/server and src/paceline/report.

python -m tools.vendor_page

The versions and the SHA-256 of every file are fixed here: a file that differs is refused. A script's name has
its version, so that browsers may cache it for good."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "paceline"
FOLDERS = [SOURCE / part / "page" / "vendor" for part in ("server", "report")]
REPORT = ("d3@7.9.2", "@observablehq/plot@0.6.17")  # packages of reports
# name@version: {path in the package: (file name here, SHA-256)}
PACKAGES = {
    "marked@18.2.1": {
        "lib/marked.esm.js": (
            "marked-18.2.1.js",
            "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de",
        ),
        "LICENSE": ("LICENSE-marked", "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c"),
    },
    "dompurify@3.5.0": {
        "dist/purify.min.js": (
            "dompurify-3.5.0.js",
            "f69a46022ab1f53e969c8ebbca98172c8995785a9b3be72ea4a12d25b1a1bf67",
        ),
        "LICENSE": ("LICENSE-dompurify", "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"),
    },
    "@highlightjs/cdn-assets@11.12.0": {
        "es/highlight.min.js": (
            "highlight-11.12.0.js",
            "1ed8fc5256b738b8875b74e4d3f0754f60d6411fb034d618dfbc4e6e6c9999d7",
        ),
        "LICENSE": ("LICENSE-highlight", "6c081431591d9df696c82dc598fe1423765b8a299b200ed00b281afd0f64c490"),
    },
    "d3@7.9.2": {
        "dist/d3.min.js": (
            "d3-7.9.2.js",
            "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
        ),
        "LICENSE": ("LICENSE-d3", "2a6d2d5f32ba0b755ddbc1c833f766e30cdbe6ebe9a6d4e3e24427721f0b63d3"),
    },
    "@observablehq/plot@0.6.17": {
        "dist/plot.umd.min.js": (
            "plot-0.6.17.js",
            "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
        ),
        "LICENSE": ("LICENSE-plot", "4b295e011e0e046170041b5b46f1349393aeceb95797793a55bd21dbb543363a"),
    },
}


def fetch(package: str) -> dict[str, bytes]:
    """Return the contents of the package's files that are used, by their names here. Raises ValueError."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        (path,) = Path(folder).iterdir()
        with tarfile.open(path) as archive:
            return {name: read(archive, member, sha) for member, (name, sha) in PACKAGES[package].items()}


def read(archive: tarfile.TarFile, member: str, sha: str) -> bytes:
    file = archive.extractfile(f"package/{member}")
    content = file.read() if file else b""
    if hashlib.sha256(content).hexdigest() != sha:
        raise ValueError(f"{member} is not the file that was checked")
    return content


def main() -> None:
    for package in PACKAGES:
        out = FOLDERS[package in REPORT]
        out.mkdir(exist_ok=True)
        for name, content in fetch(package).items():
            (out / name).write_bytes(content)
            print(f"{package}: {name}, {len(content):,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
