"""Matrices of draft heads are multiplied by the kernels' products, on every instruction set here."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from paceline.backends.llama_cpp import kernels
from paceline.backends.llama_cpp.kernels.matrices import MIN_WEIGHTS, TYPES, KernelLinear

ERRORS = {"f32": 1e-6, "f16": 1e-3, "bf16": 1e-2, "q8_0": 0.02, "q4_0": 0.2}  # of a product, relative


@pytest.fixture
def library() -> Any:
    if not kernels.load_kernels().path:
        pytest.skip("there are no kernels")
    return kernels._library


def random(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("type_name", sorted(TYPES))
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 64, 64), (1, 7, 5), (3, 33, 1), (8, 95, 40), (9, 256, 17), (17, 100, 129), (300, 32, 24)],
)
def test_a_product_is_that_of_numpy_within_its_rounding(
    library: Any, type_name: str, rows: int, inputs: int, outputs: int
) -> None:
    weight, bias, x = random(outputs, inputs), random(outputs), random(rows, inputs)
    expected = x @ weight.T + bias
    usual = np.linalg.norm(x) * np.linalg.norm(weight) * inputs**-0.5  # of random products
    results = []
    for path in kernels.paths():
        product = KernelLinear(library, weight, bias, type_name=type_name, path=path)
        assert product.shape == (outputs, inputs)
        out = product(x)
        assert out.shape == (rows, outputs)
        assert np.linalg.norm(out - expected) <= ERRORS[type_name] * usual
        results.append(out)
    for other in results[1:]:
        assert np.array_equal(results[0], other)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_the_others_nor_on_the_threads(library: Any, threads: int) -> None:
    weight, x = random(8000, 96), random(19, 96)
    alone, product = KernelLinear(library, weight), KernelLinear(library, weight, threads=threads)
    assert alone.nbytes > 512 << 10  # several threads share it
    together = product(x)
    assert all(np.array_equal(together[i], alone(x[i : i + 1])[0]) for i in range(len(x)))
    # Rows need not lie side by side.
    assert np.array_equal(product(random(38, 192)[::2, ::2]), alone(random(38, 192)[::2, ::2].copy()))
    assert product(x[:0]).shape == (0, 8000)


def test_rows_of_another_width_are_refused(library: Any) -> None:
    with pytest.raises(AssertionError, match="65 inputs, and the matrix has 64 columns"):
        KernelLinear(library, random(8, 64))(random(2, 65))


def test_the_memory_of_a_matrix_is_freed_with_it(library: Any) -> None:
    weight, process = random(8192, 1024), psutil.Process()
    size = KernelLinear(library, weight).nbytes
    assert 8192 * 1024 <= size < 1.1 * 8192 * 1024
    before = process.memory_info().rss
    for _ in range(20):
        KernelLinear(library, weight)
    assert process.memory_info().rss - before < 5 * size


def test_a_type_or_an_instruction_set_that_does_not_exist_gives_no_matrix(library: Any) -> None:
    weight = random(8, 64)
    with pytest.raises(MemoryError):
        KernelLinear(library, weight, path="avx9")
    assert library.paceline_matrix_new(b"", 9999, weight.ctypes.data, 8, 64) is None
    assert library.paceline_matrix_new(b"", TYPES["q8_0"], weight.ctypes.data, 0, 64) is None


def test_small_products_and_those_without_kernels_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.make_linear(random(8, MIN_WEIGHTS // 16), None, 1) is None
    large = random(8, MIN_WEIGHTS // 8)
    assert (kernels.make_linear(large, None, 1) is not None) is bool(kernels.load_kernels().path)
    monkeypatch.setattr(kernels, "_library", None)
    assert kernels.make_linear(large, None, 1) is None
