"""Transplants of a vocabulary into a draft model's file, which change only the embedding and the output
matrix.

After turboderp's Qwama and jukofyork's transplant-vocab, which edit Hugging Face checkpoints. The last piece
of a token represents it best as input; as output no piece does, so that tokens of several pieces are scaled
down (docs/transplant.md has measurements). The two matrices then differ, so that a draft model with tied ones
gets two, unless it is to stay tied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.registry import open_engine, open_tokenizer
from paceline.models.headers.gguf_file import GGUFFile, TensorRows
from paceline.models.headers.gguf_writer import (
    TensorToWrite,
    copy_part,
    metadata_field,
    quantise_part,
    weight_type,
    write_gguf,
)
from paceline.models.headers.plain_file import require_gguf_path
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.system.atomic import check_output, write_output
from paceline.vocab.lexicon import TokenizerVocab
from paceline.vocab.translation import check_shared

Ids = NDArray[np.int64]
IDENTICAL, SPELLED, SPECIAL, UNMATCHED_CONTROL = "same", "spelled", "special", "silent"
MOST_PIECES = 16  # from the start and the end of a token; a hostile file may have one of a megabyte
STEP = 1024  # tokens between two ticks


@dataclass(frozen=True)
class TokenPieces:
    """ids[starts[t]:starts[t + 1]]: pieces of target token t in order; none if unknown.
    never_drafted: tokens that must never be drafted.
    counts: target tokens whose text is one draft token (same) or several (spelled), and control tokens that
    the draft has by name or role (special) or lacks (silent)."""

    ids: Ids
    starts: Ids
    never_drafted: NDArray[np.bool_]
    counts: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.never_drafted)


def match(
    target: TokenizerVocab,
    draft: TokenizerVocab,
    roles: Mapping[str, int],
    draft_roles: Mapping[str, int],
    tick: Callable[[], None],
) -> TokenPieces:
    """Find the pieces of every target token. tick: called every STEP tokens.
    roles: names of tokens in the files (bos, eos, padding, ...)."""
    special = counterparts(target, draft, roles, draft_roles)
    # Of several with one counterpart only one may be drafted, preferably an end token.
    holder_of: dict[int, int] = {}
    for token in sorted(special, key=lambda token: (token not in target.vocab.eos, token)):
        holder_of.setdefault(special[token], token)
    width = min(64, max(1, *map(len, draft.token_bytes)))
    counts = dict.fromkeys((IDENTICAL, SPELLED, SPECIAL, UNMATCHED_CONTROL), 0)
    never_drafted = np.zeros(target.vocab.size, bool)
    all_ids: list[int] = []
    starts = [0]
    for token, value in enumerate(target.token_bytes):
        if token % STEP == 0:
            tick()
        if value and value in draft.by_bytes:
            ids, kind = [draft.by_bytes[value]], IDENTICAL
        elif value:
            ids, kind = _encode_in_draft(draft, value, width), SPELLED
        elif token in special:
            ids, kind = [special[token]], SPECIAL
            never_drafted[token] = holder_of[special[token]] != token
        else:
            # Its embedding is that of its name; it is never drafted.
            ids, kind = _encode_in_draft(draft, target.names[token], width), UNMATCHED_CONTROL
            never_drafted[token] = True
        if value:
            # Of several with the same text (a letter and its byte token) the tokenizer produces one.
            never_drafted[token] = not ids or target.by_bytes[value] != token
        counts[kind] += 1
        all_ids += ids
        starts.append(len(all_ids))
    return TokenPieces(np.array(all_ids, np.int64), np.array(starts, np.int64), never_drafted, counts)


def counterparts(
    target: TokenizerVocab, draft: TokenizerVocab, roles: Mapping[str, int], draft_roles: Mapping[str, int]
) -> dict[int, int]:
    """Map target control tokens to draft control tokens of the same name, else role, else to an end token.
    A role of a token with text is ignored (BPE's default BOS is a comma)."""
    draft_tokens = {role: token for role, token in draft_roles.items() if token in draft.names}
    ends = [draft_tokens[role] for role in ("eot", "eos") if role in draft_tokens] or sorted(draft.vocab.eos)
    out: dict[int, int] = {}
    for token, name in target.names.items():
        shared = [role for role, holder in roles.items() if holder == token and role in draft_tokens]
        if name and name in draft.by_name:
            out[token] = draft.by_name[name]
        elif shared:
            out[token] = draft_tokens[shared[0]]
        elif token in target.vocab.eos and ends:
            out[token] = ends[0]
    return out


def _encode_in_draft(draft: TokenizerVocab, text: bytes, width: int) -> list[int]:
    """Return the draft tokens of a text, without those that have no text. width: bytes of the draft's longest
    token."""
    half = MOST_PIECES * width
    if len(text) > 2 * half:
        text = text[:half] + text[-half:]
    ids = draft.encode(text)
    if draft.decode(ids) != text:
        ids = [token for token in ids if token != draft.filler]
    ids = [token for token in ids if draft.token_bytes[token]]
    return ids if len(ids) <= 2 * MOST_PIECES else ids[:MOST_PIECES] + ids[-MOST_PIECES:]


EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
INPUT_TABLES = re.compile(r"(per_layer_)?token_embd\.weight|blk\.\d+\.nextn\.embed_tokens\.weight")
OUTPUT_TABLES = re.compile(r"output\.(weight|bias)|blk\.\d+\.nextn\.shared_head_head\.weight")
UNCHANGED_TYPES = ("F32", "F16", "BF16", "Q8_0")  # others become Q8_0, since means of rows need more bits
TOKENIZER_PREFIX = "tokenizer."
CHUNK_ROWS = 1024
MULTI_PIECE_SCALE = 0.7  # of the distance from the mean row, with several pieces (docs/transplant.md)
LEAST_CONTEXT = 16  # tokens; enough to check that a file loads
NAME = "general.name"
# Words, numbers, spaces, several scripts, and characters that most vocabularies split.
PROBE = "def f(x):\n\treturn  x+12345  # naïve – Straße 東京 😀\r\n\n   <|im_start|>user </s> [INST]"


class Transplant:
    """Both opened files; of the target only the part before its weights. Raises UsageError and ModelError.
    new_type: of the new tensors; None keeps the old type, or Q8_0. tied: one matrix, with the output
    weights, serves as both; None only if llama.cpp requires it."""

    def __init__(
        self, draft: Path, target: Path, *, new_type: str | None = None, tied: bool | None = None
    ) -> None:
        self._new_type, self._tied = None if new_type is None else weight_type(new_type), tied
        with ExitStack() as stack:  # closes what is open if something is wrong
            for path in (draft, target):
                require_gguf_path(path)
            # Before llama.cpp, which validates headers less.
            self.file, self.vocab_file = GGUFFile(draft), GGUFFile(target)
            if self.file.values.get("split.count", 1) not in (0, 1):
                raise UsageError(f"{draft}: is one of several parts; join them with llama-gguf-split --merge")
            self._target = stack.enter_context(closing(open_tokenizer(target)))
            self._draft = stack.enter_context(closing(open_tokenizer(draft)))
            with suppress(VocabError):
                check_shared(self._target.vocab, self._draft.vocab)
                raise UsageError(f"{draft} has the vocabulary of {target} already: use it as it is (-md)")
            self._tables = self._find_tables()
            if self._tied and OUTPUT in self._tables:
                raise UsageError(f"{draft} has two matrices, which cannot become one: leave out --tied")
            self._rest = [t for name, t in self.file.tensors.items() if name not in self._tables]
            self._stack = stack.pop_all()

    def __enter__(self) -> Transplant:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def steps(self) -> dict[str, int]:
        """The minimum number of ticks of `write` for each phase."""
        tokens = -(-self._target.vocab.size // STEP)
        return {"match": tokens, "write": len(self._rest) + len(self._tables)}

    def write(
        self, out: Path, *, force: bool = False, tick: Callable[[str], None] = lambda _: None
    ) -> dict[str, Any]:
        """Write the file and return a record for `paceline transplant --json`, with TokenPieces' counts and
        the mean number of `pieces` of tokens with several.
        `out` appears only if it is complete and llama.cpp tokenizes with it as with the target."""
        check_output(out, self._draft.path, self._target.path, force=force)
        pieces = match(
            TokenizerVocab(self._target.vocab, self._target.text.encode_continuation),
            TokenizerVocab(self._draft.vocab, self._draft.text.encode_continuation),
            self.vocab_file.special_tokens(self._target.vocab.size),
            self.file.special_tokens(self._draft.vocab.size),
            partial(tick, "match"),
        )
        was_tied = OUTPUT not in self._tables
        ways = [self._tied] if self._tied is not None else [False, True] if was_tied else [False]
        with write_output(out) as part:
            for tied in ways:
                kind = self._write(part, pieces, bool(tied), partial(tick, "write"))
                # Some architectures have no separate output matrix.
                with suppress(ModelError) if tied is not ways[-1] else nullcontext():
                    self._check(part)
                    break
            size = part.stat().st_size
        lengths = np.diff(pieces.starts)
        mean = float(lengths[lengths > 1].mean()) if (lengths > 1).any() else 1.0
        result = {"size": size, "vocab": len(pieces), **pieces.counts, "pieces": mean}
        return {"out": str(out), **result, "type": kind, "tied": bool(tied)}

    def _find_tables(self) -> dict[str, TensorRows]:
        """Return the draft's tensors that have a row for each token."""
        path, size = self.file.path, self._draft.vocab.size
        tables = {}
        for name, tensor in self.file.tensors.items():
            if INPUT_TABLES.fullmatch(name) or OUTPUT_TABLES.fullmatch(name):
                usable = tensor.shape[-1:] == (size,) and len(tensor.shape) <= 2
                tables[name] = TensorRows(self.file, tensor)
            else:
                usable = len(tensor.shape) < 2 or tensor.shape[-1] != size
            if not usable:
                raise ModelError(
                    f"{path}: {name} is {tensor.shape} for {size:,} tokens: such a model cannot be "
                    "transplanted"
                )
        if EMBEDDING not in tables:
            raise ModelError(
                f"{path}: holds no token embedding (a vocabulary-only file?); give a whole model"
            )
        return tables

    def _type(self, table: TensorRows) -> Any:
        if not table.dims:
            return weight_type("F32")
        type_name = table.type.name if table.type.name in UNCHANGED_TYPES else "Q8_0"
        return self._new_type or weight_type(type_name)

    def _table_parts(self, pieces: TokenPieces, tied: bool) -> Iterator[TensorToWrite]:
        for name, table in self._tables.items():
            # A tied matrix has output rows: a wrong output row is drafted, a wrong input row only read.
            made = [(name, bool(INPUT_TABLES.fullmatch(name)) and not (tied and name == EMBEDDING))]
            if name == EMBEDDING and not tied and OUTPUT not in self._tables:
                made.append((OUTPUT, False))
            for new, read in made:
                rows = partial(transplant_rows, table, pieces, read=read)
                yield quantise_part(new, (*table.dims, len(pieces)), self._type(table), rows)

    def _write(self, part: Path, pieces: TokenPieces, tied: bool, tick: Callable[[], None]) -> str:
        size_key = f"{self.file.text('general.architecture')}.vocab_size"
        old, vocab = self.file.fields, self.vocab_file.fields
        changed = {}
        if size_key in old:
            changed[size_key] = metadata_field(size_key, len(pieces))
        if (name := self.file.text(NAME)) and (other := self.vocab_file.text(NAME)):
            # llama.cpp's tokenizer depends on the model's name too (Phi-3's).
            changed[NAME] = metadata_field(NAME, f"{name}, vocabulary of {other}")
        fields = [
            changed.get(key, field) for key, field in old.items() if not key.startswith(TOKENIZER_PREFIX)
        ]
        fields += [field for key, field in vocab.items() if key.startswith(TOKENIZER_PREFIX)]
        parts = [*self._table_parts(pieces, tied), *(copy_part(self.file, tensor) for tensor in self._rest)]
        write_gguf(part, fields, parts, self.file.alignment, tick)
        return str(self._type(self._tables[EMBEDDING]).name)

    def _check(self, part: Path) -> None:
        """Check that the file loads and tokenizes as the target does."""
        open_engine(part, n_ctx=LEAST_CONTEXT).close()
        with closing(open_tokenizer(part)) as made:
            check_shared(self._target.vocab, made.vocab)
            names = b"".join(self._target.vocab.text(token) for token in sorted(self._target.vocab.eos))
            text = PROBE + names.decode(errors="replace")
            for special in (False, True):
                if made.text.encode(text, special=special) != self._target.text.encode(text, special=special):
                    raise VocabError(
                        f"{self.file.path}: this architecture reads text differently with the target's "
                        "tokenizer: take one of the target's architecture, or --cross-vocab auto"
                    )


def transplant_rows(table: TensorRows, pieces: TokenPieces, *, read: bool) -> Iterator[NDArray[np.float32]]:
    """Yield the new table, at most CHUNK_ROWS rows at a time.
    read: an embedding, where a token has its last piece's row. Otherwise an output matrix, where it has the
    mean of its pieces' rows; with several pieces that is scaled towards the mean of all rows. Tokens that are
    never drafted have the mean of all rows, so that they are never likelier than average."""
    total = np.zeros(table.width)
    for start in range(0, table.size, CHUNK_ROWS):
        total += table.rows(slice(start, start + CHUNK_ROWS)).sum(0, dtype=np.float64)
    mean = (total / table.size).astype(np.float32)
    for start in range(0, len(pieces), CHUNK_ROWS):
        starts = pieces.starts[start : min(start + CHUNK_ROWS, len(pieces)) + 1]
        lengths, first, last = np.diff(starts), int(starts[0]), int(starts[-1])
        out = np.repeat(mean[None], len(lengths), axis=0)
        nonempty = lengths > 0
        if last > first and read:
            out[nonempty] = table.rows(pieces.ids[starts[1:][nonempty] - 1])
        elif last > first:
            used, inverse = np.unique(pieces.ids[first:last], return_inverse=True)
            sums = np.add.reduceat(table.rows(used)[inverse], starts[:-1][nonempty] - first, axis=0)
            out[nonempty] = sums / lengths[nonempty, None].astype(np.float32)
        if not read:
            out[lengths > 1] = mean + np.float32(MULTI_PIECE_SCALE) * (out[lengths > 1] - mean)
            out[pieces.never_drafted[start : start + len(lengths)]] = mean
        yield out
