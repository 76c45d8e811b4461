"""A vocabulary's fingerprint: the same where an id means the same, and only there."""

from dataclasses import replace

from paceline.speculative.vocabulary import Vocab


def vocab(*texts: bytes) -> Vocab:
    spelled = texts.__getitem__
    return Vocab(len(texts), "BPE", None, frozenset(), False, False, text=spelled, piece=spelled)


def test_it_depends_on_the_size_and_every_tokens_text_and_on_nothing_else() -> None:
    one = vocab(b"a", b"bc", b"")
    same = replace(vocab(b"a", b"bc", b""), bos=0, eos=frozenset({2}), piece=lambda token: b"?")
    assert one.fingerprint == same.fingerprint
    assert len(one.fingerprint) == 64
    others = [vocab(b"a", b"bc"), vocab(b"ab", b"c", b""), vocab(b"a", b"b", b"c"), vocab(b"bc", b"a", b"")]
    assert len({it.fingerprint for it in [one, *others]}) == 5
