"""The check that two models share a vocabulary."""

from dataclasses import replace

import pytest

from paceline.speculative.errors import VocabError
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.translation import check_shared

VOCAB = Vocab(1000, "BPE", 1, frozenset({2}), False, False, b"%d".__mod__, b"%d".__mod__)


def test_padding_and_control_tokens_may_differ() -> None:
    check_shared(VOCAB, VOCAB)
    check_shared(VOCAB, replace(VOCAB, size=1128))
    check_shared(VOCAB, replace(VOCAB, text=lambda token: b"?" if token < 5 else b"%d" % token))


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (replace(VOCAB, kind="SPM"), "tokenizer type is SPM, target BPE"),
        (replace(VOCAB, bos=3), r"BOS token is 3 \(is put before no text\), target 1 \("),
        (replace(VOCAB, bos=None), r"BOS token is none \("),
        (replace(VOCAB, add_bos=True), r"BOS token is 1 \(is put before every text\), target 1 \("),
        (replace(VOCAB, eos=frozenset({2, 3})), r"EOS token is 2, 3 \(is put after no text\), target 2 \("),
        (replace(VOCAB, size=1129), "1,129 tokens, target 1,000"),
        (replace(VOCAB, text=lambda token: b"x"), "token 5 is b'x', target b'5'"),
    ],
)
def test_another_vocabulary_is_refused_with_the_difference_and_advice(draft: Vocab, complaint: str) -> None:
    with pytest.raises(VocabError, match=f"{complaint}.*of the same family"):
        check_shared(VOCAB, draft)
