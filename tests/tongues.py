"""Toy targets with a text for each token, for translation between vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.backends.toy import ToyTarget
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.lexicon import TokenizerVocab
from paceline.vocab.translation import Translation


def speaking(toy: ToyTarget, pieces: Sequence[str | bytes]) -> ToyTarget:
    """Give token i of `toy` the text pieces[i]."""
    said = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    assert len(said) == toy.vocab.size
    toy.vocab = replace(toy.vocab, piece=said.__getitem__)
    return toy


def untaught(text: str) -> list[int]:
    """A tokenizer without tokens, so that texts are divided into the longest pieces."""
    return []


def translation(target: Vocab, draft: Vocab) -> Translation:
    ours, theirs = TokenizerVocab(target, untaught), TokenizerVocab(draft, untaught)
    return Translation(ours, theirs)
