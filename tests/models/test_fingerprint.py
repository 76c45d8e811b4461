"""A vocabulary's fingerprint: the same where an id means the same, and only there."""

import gc
from dataclasses import replace
from weakref import ref

from paceline.models.fingerprint import fingerprint
from paceline.speculative.vocabulary import Vocab


def vocab(*texts: bytes) -> Vocab:
    spelled = texts.__getitem__
    return Vocab(len(texts), "BPE", None, frozenset(), False, False, text=spelled, piece=spelled)


def test_it_depends_on_the_size_and_every_tokens_text_and_on_nothing_else() -> None:
    one = vocab(b"a", b"bc", b"")
    same = replace(vocab(b"a", b"bc", b""), bos=0, eos=frozenset({2}), piece=lambda token: b"?")
    assert fingerprint(one) == fingerprint(same)
    assert len(fingerprint(one)) == 64
    others = [vocab(b"a", b"bc"), vocab(b"ab", b"c", b""), vocab(b"a", b"b", b"c"), vocab(b"bc", b"a", b"")]
    assert len({fingerprint(it) for it in [one, *others]}) == 5


def test_it_is_found_once_and_does_not_keep_the_vocabulary_alive() -> None:
    asked: list[int] = []

    def text(token: int) -> bytes:
        asked.append(token)
        return b"%d" % token

    one = replace(vocab(b"", b""), text=text)
    assert fingerprint(one) == fingerprint(one)
    assert asked == [0, 1]
    gone = ref(one)
    del one
    gc.collect()
    assert gone() is None
