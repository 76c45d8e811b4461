"""The corpus: what is in it, what must never be."""

from __future__ import annotations

import shutil

import pytest

from tools.embedded import corpus


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Texts of a small library: two real packages, a test, a held-out module and copies of a part of it."""
    library = tmp_path_factory.mktemp("library")
    for package in ("json", "logging"):
        shutil.copytree(corpus.stdlib() / package, library / package)
    (library / "test").mkdir()
    (library / "test/test_shlex.py").write_text("import shlex\n\n# A test of it.\n" * 20)
    shutil.copy(corpus.stdlib() / "textwrap.py", library)
    copied = corpus.held_out()["textwrap"].splitlines()[100:140]
    for name, before in (("copied.py", 0), ("test/test_copied.py", 20)):
        own = [f"own = {i}" for i in range(before + 20)]
        (library / name).write_text("\n".join([*own, *copied, *own]))
    return corpus.build(record_bytes=200_000, packages=False, library=library)


def test_neither_a_held_out_module_nor_a_copy_of_a_part_of_it_is_in_the_training_text(
    texts: dict[str, list[str]],
) -> None:
    line = corpus.held_out()["textwrap"].splitlines()[120]
    assert len(line.strip()) > 10
    assert not [text for documents in texts.values() for text in documents if line in text]
