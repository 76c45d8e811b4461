"""Our sampling chain against llama.cpp's own samplers, on the same logits and history."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.backends.llama_cpp.binding import llama_cpp, load_model
from paceline.backends.llama_cpp.text import LlamaText, read_vocab
from paceline.speculative.sampling import Sampling, dry_penalties, probabilities, softmax
from paceline.text.token_texts import sequence_breakers
from real_model import smollm2

V = 40


def llama_chain(sampling: Sampling) -> Any:
    """llama.cpp's samplers in its default order."""
    cpp = llama_cpp()
    chain = cpp.llama_sampler_chain_init(cpp.llama_sampler_chain_default_params())
    bias = (cpp.llama_logit_bias * len(sampling.logit_bias))(*sampling.logit_bias.items())
    for sampler in (
        cpp.llama_sampler_init_logit_bias(V, len(bias), bias),
        cpp.llama_sampler_init_penalties(
            V,
            sampling.repeat_last_n,
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        ),
        # Sequence breakers need a vocabulary: see below.
        cpp.llama_sampler_init_dry(
            None, sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length,
            sampling.dry_penalty_last_n, None, 0,
        ),
        cpp.llama_sampler_init_top_n_sigma(sampling.top_n_sigma),
        cpp.llama_sampler_init_top_k(sampling.top_k),
        cpp.llama_sampler_init_typical(sampling.typical_p, 1),
        cpp.llama_sampler_init_top_p(sampling.top_p, 1),
        cpp.llama_sampler_init_min_p(sampling.min_p, 1),
        cpp.llama_sampler_init_xtc(sampling.xtc_probability, sampling.xtc_threshold, 1, 7),
        cpp.llama_sampler_init_temp_ext(
            sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
        ),
    ):  # fmt: skip
        cpp.llama_sampler_chain_add(chain, sampler)
    return chain


def applied(chain: Any, logits: np.ndarray) -> np.ndarray:
    """p [n_vocab] of what one use of the chain leaves."""
    cpp = llama_cpp()
    data = (cpp.llama_token_data * V)(*((i, float(x), 0.0) for i, x in enumerate(logits)))
    array = cpp.llama_token_data_array(data=data, size=V, selected=-1, sorted=False)
    cpp.llama_sampler_apply(chain, ctypes.byref(array))
    p = np.zeros(V)
    kept = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    p[[token for token, _ in kept]] = softmax(np.array([logit for _, logit in kept]))
    return p


def llama_distribution(logits: np.ndarray, sampling: Sampling, history: Sequence[int]) -> np.ndarray:
    """p [n_vocab] that llama.cpp draws from. XTC is a coin there: the mixture of its two outcomes."""
    if 0.0 < sampling.xtc_probability < 1.0:
        without = llama_distribution(logits, replace(sampling, xtc_probability=0.0), history)
        always = llama_distribution(logits, replace(sampling, xtc_probability=1.0), history)
        mixture: np.ndarray = without + sampling.xtc_probability * (always - without)
        return mixture
    cpp = llama_cpp()
    chain = llama_chain(sampling)
    for token in history:
        cpp.llama_sampler_accept(chain, token)
    p = applied(chain, logits)
    cpp.llama_sampler_free(chain)
    return p


def row(seed: int) -> np.ndarray:
    logits: np.ndarray = np.random.default_rng(seed).normal(scale=2.0, size=V).astype(np.float32)
    return logits


@given(
    seed=st.integers(0, 10_000),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 5, 20, 100]),
        typical_p=st.sampled_from([1.0, 0.9, 0.3]),
        top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
        min_p=st.sampled_from([0.0, 0.05, 0.4]),
        xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
        xtc_threshold=st.sampled_from([0.02, 0.1, 0.3]),
        repeat_penalty=st.sampled_from([1.0, 1.3, 0.8]),
        presence_penalty=st.sampled_from([0.0, 0.7]),
        frequency_penalty=st.sampled_from([0.0, 0.4, -0.2]),
        repeat_last_n=st.sampled_from([0, 3, 64]),
        top_n_sigma=st.sampled_from([-1.0, 0.0, 0.7, 1.5]),
        dynatemp_range=st.sampled_from([0.0, 0.25, 2.0]),
        dynatemp_exponent=st.sampled_from([1.0, 0.5, 3.0]),
        dry_multiplier=st.sampled_from([0.0, 0.8]),
        dry_base=st.sampled_from([1.0, 1.75, 100.0]),
        dry_allowed_length=st.sampled_from([0, 1, 2, 5]),
        dry_penalty_last_n=st.sampled_from([0, 4, 64]),
        logit_bias=st.sampled_from([{}, {3: 2.0, 7: -1.0}, {0: -np.inf}]),
    ),
    history=st.lists(st.integers(0, V - 1), max_size=12) | st.lists(st.integers(0, 2), max_size=40),
)
@settings(max_examples=300, deadline=None)
def test_every_setting_gives_llama_cpps_distribution(
    seed: int, sampling: Sampling, history: list[int]
) -> None:
    # llama.cpp's entropy is NaN where a token is impossible.
    impossible = sampling.top_n_sigma > 0 or sampling.dry or -np.inf in sampling.logit_bias.values()
    assume(sampling.typical_p == 1.0 or not impossible)
    ours = probabilities(row(seed), sampling, history)
    theirs = llama_distribution(row(seed), sampling, history)
    assert np.abs(ours - theirs).max() < 1e-5


def test_dry_stops_at_the_sequence_breakers_that_llama_cpp_finds() -> None:
    """Breakers of one and of several characters, of which tokens have a part."""
    cpp, model = llama_cpp(), load_model(smollm2(), vocab_only=True)
    text, vocab = LlamaText(model), read_vocab(model)
    texts = ("\n", ":", "User:", " \n\nx", "é*")
    breakers = sequence_breakers(text, vocab, texts)
    assert {len(tail) for tails in breakers.values() for tail in tails} >= {0, 1, 2}
    sampling = Sampling(dry_multiplier=0.8, dry_allowed_length=1, dry_breakers=breakers)
    strings = (ctypes.c_char_p * len(texts))(*(one.encode() for one in texts))
    pointer = cpp.llama_model_get_vocab(model)
    penalised = 0
    for written in (
        "a b c d a b c", "one: two\none: two\none:", "say User: hi there User: hi", "x \n\nx y z \n\nx y z",
        "né*e et né*e et n", "red red red red red", "to be User to be User to be", "",
    ):  # fmt: skip
        history = text.encode(written, add_bos=False)
        sampler = cpp.llama_sampler_init_dry(pointer, 0.8, 1.75, 1, 64, strings, len(texts))
        for token in history:
            cpp.llama_sampler_accept(sampler, token)
        data = (cpp.llama_token_data * vocab.size)(*((i, 0.0, 0.0) for i in range(vocab.size)))
        array = cpp.llama_token_data_array(data=data, size=vocab.size, selected=-1, sorted=False)
        cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        theirs = {one.id: -one.logit for one in data if one.logit}
        cpp.llama_sampler_free(sampler)
        ours = dry_penalties(sampling, history)
        assert theirs.keys() == ours.keys(), written
        assert np.allclose([theirs[token] for token in ours], list(ours.values()), rtol=1e-6)
        penalised += len(ours)
    assert penalised == 5
