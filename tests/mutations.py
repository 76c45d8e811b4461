"""A model file with one thing wrong, over and over: every key and every kind of tensor of a good one.

A mutant that is honest is laid out anew, so that nothing but the changed thing is wrong with it; others lie
about sizes and places."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.machine.models.gguf_header import ARRAY, BOOL, NUMBERS, STRING, TYPES
from raw_gguf import array, key, tensor, text

U8, U16, I16, U32, I32, F32, U64, I64, F64 = 0, 2, 3, 4, 5, 6, 10, 11, 12
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FLOATS = (0.0, 1.0, -1.0, -1e-5, 1e-30, 1e30, float("nan"), float("inf"), float("-inf"))
Mutant = tuple[str, bytes]


@dataclass(frozen=True)
class Weights:
    name: str
    dims: tuple[int, ...]
    type: int
    data: bytes = b""

    @property
    def size(self) -> int:
        """Of what its shape and type say."""
        elements, size = TYPES.get(self.type, (1, 4))
        n = 1
        for dim in self.dims:
            n *= dim
        return n // elements * size


@dataclass(frozen=True)
class Model:
    """fields: key to type and value, as the file has them."""

    fields: tuple[tuple[str, int, bytes], ...]
    tensors: tuple[Weights, ...]
    alignment: int = 32

    @staticmethod
    def read(path: Path) -> Model:
        """Of a good file."""
        raw = path.read_bytes()
        n_tensors, n_keys = struct.unpack_from("<QQ", raw, 8)
        at, fields = 24, []
        for _ in range(n_keys):
            name, at = _string(raw, at)
            kind = struct.unpack_from("<I", raw, at)[0]
            end = _after(raw, at + 4, kind)
            fields.append((name.decode(), kind, raw[at + 4 : end]))
            at = end
        infos = []
        for _ in range(n_tensors):
            name, at = _string(raw, at)
            n_dims = struct.unpack_from("<I", raw, at)[0]
            *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", raw, at + 4)
            at += 4 + 8 * n_dims + 12
            infos.append((Weights(name.decode(), tuple(dims), kind), offset))
        start = at + -at % 32
        tensors = [
            replace(one, data=raw[start + offset : start + offset + one.size]) for one, offset in infos
        ]
        return Model(tuple(fields), tuple(tensors))

    def write(self, offsets: Callable[[int, int], int] = lambda i, offset: offset) -> bytes:
        """offsets: of a tensor's number and its place, the place that is claimed."""
        infos, data, place = [], [], 0
        for i, one in enumerate(self.tensors):
            infos.append(tensor(one.name, one.dims, one.type, offsets(i, place)))
            size = min(one.size, 1 << 24)
            body = one.data[:size].ljust(size, b"\0")
            data.append(body + bytes(-len(body) % self.alignment))
            place += len(data[-1])
        fields = [key(name, kind, value) for name, kind, value in self.fields]
        head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join((*fields, *infos))
        return head + bytes(-len(head) % self.alignment) + b"".join(data)

    def having(self, name: str, kind: int, value: bytes) -> Model:
        field = (name, kind, value)
        if all(known != name for known, _, _ in self.fields):
            return replace(self, fields=(*self.fields, field))
        return replace(self, fields=tuple(field if known[0] == name else known for known in self.fields))

    def without(self, name: str) -> Model:
        return replace(self, fields=tuple(field for field in self.fields if field[0] != name))

    def number(self, name: str) -> int:
        kind, value = next((kind, value) for known, kind, value in self.fields if known == name)
        return int(struct.unpack("<" + FORMATS[kind], value)[0])

    def swapped(self, index: int, *others: Weights) -> Model:
        """With these in one's place."""
        return replace(self, tensors=(*self.tensors[:index], *others, *self.tensors[index + 1 :]))


def _string(raw: bytes, at: int) -> tuple[bytes, int]:
    end = at + 8 + struct.unpack_from("<Q", raw, at)[0]
    return raw[at + 8 : end], end


def _after(raw: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return _string(raw, at)[1]
    if kind != ARRAY:
        return at + NUMBERS[kind].itemsize
    inner, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    if inner != STRING:
        return int(at + count * NUMBERS[inner].itemsize)
    for _ in range(count):
        at = _string(raw, at)[1]
    return at


def number(kind: int, value: float) -> bytes:
    return struct.pack("<" + FORMATS[kind], value)


def numbers(kind: int, values: Sequence[float]) -> bytes:
    return array(kind, len(values), b"".join(number(kind, value) for value in values))


def texts(values: Sequence[bytes]) -> bytes:
    return array(STRING, len(values), b"".join(map(text, values)))


def strings(value: bytes) -> list[bytes]:
    """Of an array of them, as a field has it."""
    at, found = 12, []
    for _ in range(struct.unpack_from("<Q", value, 4)[0]):
        one, at = _string(value, at)
        found.append(one)
    return found


def mutants(model: Model) -> Iterator[Mutant]:
    for name, kind, value in model.fields:
        for label, other in _values(kind, value):
            yield f"{name} {label}", model.having(name, *other).write()
        yield f"{name} missing", model.without(name).write()
        yield f"{name} doubled", replace(model, fields=(*model.fields, (name, kind, value))).write()
    yield from _added(model)
    yield from _vocabularies(model)
    yield from _tensors(model)
    yield from _layouts(model)


def _values(kind: int, value: bytes) -> Iterator[tuple[str, tuple[int, bytes]]]:
    others: dict[str, tuple[int, bytes]] = {
        "as u8": (U8, number(U8, 1)),
        "as u64": (U64, number(U64, 1)),
        "as i32": (I32, number(I32, -1)),
        "as nan": (F32, number(F32, float("nan"))),
        "as true": (BOOL, number(BOOL, True)),
        "as text": (STRING, text("x")),
        "as empty text": (STRING, text("")),
        "as numbers": (ARRAY, numbers(U32, [1, 2, 3])),
        "as no numbers": (ARRAY, numbers(I32, [])),
        "as texts": (ARRAY, texts([b"a", b"b"])),
    }
    yield from others.items()
    if kind in (F32, F64):
        yield from ((f"= {it:g}", (kind, number(kind, it))) for it in FLOATS)
    elif kind == BOOL:
        yield "flipped", (kind, number(BOOL, not value[0]))
    elif kind in NUMBERS:
        most = 256 ** NUMBERS[kind].itemsize - 1
        now = struct.unpack("<" + FORMATS[kind], value)[0]
        for it in (0, 1, 2, 3, 7, now - 1, now + 1, 2 * now, 2 * now + 1, 513, 1025, most // 2, most):
            yield f"= {it % (most + 1)}", (kind, number(kind, it % (most + 1)))
        for n in (1, 3, 6, 512, 513):
            yield f"{n} times", (ARRAY, numbers(kind, [now] * n))
        yield "another in each layer", (ARRAY, numbers(kind, [now, 1, *[now] * 4]))
    elif kind == STRING:
        for said in (
            b"\xff\xfe",
            b"a\0b",
            b"x" * (1 << 20),
            b"{{",
            "\U0001f642".encode() * 99,
            b"none",
            b"llama",
        ):
            yield f"= {said[:9]!r}", (kind, text(said))
        yield "of a length that lies", (kind, text(b"abc", 1 << 62))
    elif kind == ARRAY:
        yield "of a length that lies", (kind, value[:4] + struct.pack("<Q", 1 << 40) + value[12:])
        yield "of arrays", (kind, struct.pack("<I", ARRAY) + value[4:])


def _added(model: Model) -> Iterator[Mutant]:
    """Keys that the file does not have, and llama.cpp knows."""
    arch = next(value for name, _, value in model.fields if name == "general.architecture")[8:].decode()
    counts = "expert_count expert_used_count expert_group_count expert_group_used_count nextn_predict_layers"
    counts += " attention.sliding_window pooling_type embedding_length_out expert_feed_forward_length"
    counts += " rope.dimension_count_swa attention.key_length_swa attention.key_length_mla ssm.conv_kernel"
    counts += " rope.scaling.original_context_length attention.shared_kv_layers leading_dense_block_count"
    for name in counts.split():
        for it in (0, 1, 2, 3, 4, 1024, 1025, 2**32 - 1):
            yield f"{name} = {it}", model.having(f"{arch}.{name}", U32, number(U32, it)).write()
    scales = "rope.scaling.factor rope.scaling.attn_factor rope.scale_linear attention.layer_norm_epsilon"
    scales += " attention.scale attention.clamp_kqv attention.max_alibi_bias final_logit_softcapping"
    scales += " attn_logit_softcapping logit_scale residual_scale embedding_scale rope.freq_base_swa"
    for name in scales.split():
        for real in FLOATS:
            yield f"{name} = {real:g}", model.having(f"{arch}.{name}", F32, number(F32, real)).write()
    for scaling in (b"", b"yarn", b"longrope", b"none", b"x", b"x" * 999):
        yield (
            f"scaling {scaling[:9]!r}",
            model.having(f"{arch}.rope.scaling.type", STRING, text(scaling)).write(),
        )
    pair = model.having(f"{arch}.expert_count", U32, number(U32, 4))
    for used in (0, 1, 4, 5):
        yield f"{used} of 4 experts", pair.having(f"{arch}.expert_used_count", U32, number(U32, used)).write()
    for kind, it in ((U16, 2), (U16, 65535), (U32, 2), (U16, 1), (U16, 0)):
        yield f"split.count {kind} {it}", model.having("split.count", kind, number(kind, it)).write()
    for sections in ([1, 1, 1, 1], [0] * 4, [-1] * 4, [2**31 - 1] * 4, [16]):
        yield (
            f"sections {sections}",
            model.having(f"{arch}.rope.dimension_sections", ARRAY, numbers(I32, sections)).write(),
        )
    for template in (
        b"{% for",
        b"{{ messages[9] }}",
        b"{{ 1 // 0 }}",
        b"\xff",
        b"{% for i in range(10**9) %}",
    ):
        yield (
            f"template {template[:9]!r}",
            model.having("tokenizer.chat_template", STRING, text(template)).write(),
        )
    for it in (0, 1, 2, 3, 8, 16, 48, 64, 4096, 1 << 31):
        lies = model.having("general.alignment", U32, number(U32, it))
        yield f"alignment {it} claimed", lies.write()
        if it in (1, 2, 8, 16, 64, 4096):
            yield f"alignment {it}", replace(lies, alignment=it).write()


def _vocabularies(model: Model) -> Iterator[Mutant]:
    kept = {name: value for name, kind, value in model.fields if kind == ARRAY}
    tokens = strings(kept["tokenizer.ggml.tokens"])
    n = len(tokens)

    def listed(others: Sequence[bytes]) -> bytes:
        return model.having("tokenizer.ggml.tokens", ARRAY, texts(others)).write()

    yield "tokens: two alike", listed([*tokens[:-1], tokens[0]])
    yield "tokens: all alike", listed([b"a"] * n)
    yield "tokens: one empty", listed([b"", *tokens[1:]])
    yield "tokens: all empty", listed([b""] * n)
    yield "tokens: empty, and its other name", listed([b"", b"[EMPTY_0]", *tokens[2:]])
    yield "tokens: alike to a zero byte", listed([b"a\0b", b"a\0c", *tokens[2:]])
    yield "tokens: no UTF-8", listed([b"\xff\xfe", b"\xc3", *tokens[2:]])
    yield "tokens: one long", listed([b"x" * (1 << 20), *tokens[1:]])
    yield "tokens: no bytes", listed([b"w%d" % i for i in range(n)])
    yield "tokens: spaces", listed([b" " * (i + 1) for i in range(n)])
    for count in (0, 1, 5, 11, n // 2, n - 1):
        yield f"tokens: {count}", listed(tokens[:count])
        yield f"tokens: {count}, and rows", _cut(model, tokens[:count]).write()
    yield "tokens: one more", listed([*tokens, b"another one"])
    yield "merges: none", model.having("tokenizer.ggml.merges", ARRAY, texts([])).write()
    yield (
        "merges: odd",
        model.having(
            "tokenizer.ggml.merges", ARRAY, texts([b"", b" ", b"a", b"a b c", b" a", b"\xff \xfe", b"a\0b c"])
        ).write(),
    )
    types = kept.get("tokenizer.ggml.token_type")
    if types:
        for type_ in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1):
            yield (
                f"types: all {type_}",
                model.having("tokenizer.ggml.token_type", ARRAY, numbers(I32, [type_] * n)).write(),
            )
        for count in (n - 1, n + 1, 0):
            yield (
                f"types: {count}",
                model.having("tokenizer.ggml.token_type", ARRAY, numbers(I32, [1] * count)).write(),
            )
    for count in (n, n - 1, n + 1):
        scores = numbers(F32, [float("nan")] * count)
        yield f"scores: {count}", model.having("tokenizer.ggml.scores", ARRAY, scores).write()
    bare = model.without("tokenizer.ggml.bos_token_id").without("tokenizer.ggml.eos_token_id")
    few = _cut(bare, tokens[:8])
    for role in ("bos", "eos", "sep"):
        wanting = few.having(f"tokenizer.ggml.add_{role}_token", BOOL, number(BOOL, True))
        yield f"{role} wanted and not there", wanting.write()
    spelled = texts([b"<0x%02X>" % i if i < 256 else one for i, one in enumerate(tokens)])
    bytes_ = numbers(I32, [6 if i < 256 else 1 for i in range(n)])
    kinds = "llama bert t5 rwkv plamo2 gemma4 hybriddna whitespace test none"
    for name in kinds.split():
        other = model.having("tokenizer.ggml.model", STRING, text(name))
        yield f"tokenizer {name}", other.write()
        other = other.having("tokenizer.ggml.tokens", ARRAY, spelled)
        yield f"tokenizer {name}, bytes", other.having("tokenizer.ggml.token_type", ARRAY, bytes_).write()


def _cut(model: Model, tokens: Sequence[bytes]) -> Model:
    """A model of so many tokens."""
    n = len(tokens)
    model = model.having("tokenizer.ggml.tokens", ARRAY, texts(tokens))
    model = model.having("tokenizer.ggml.token_type", ARRAY, numbers(I32, [1] * n))
    changed = tuple(
        replace(one, dims=(one.dims[0], n)) if one.name in ("token_embd.weight", "output.weight") else one
        for one in model.tensors
    )
    return replace(model, tensors=changed)


def _tensors(model: Model) -> Iterator[Mutant]:
    seen: set[str] = set()
    for i, one in enumerate(model.tensors):
        kind = re.sub(r"\d+", "N", one.name)
        if kind in seen:
            continue
        seen.add(kind)
        first, *rest = one.dims
        for dims in (
            tuple(reversed(one.dims)),
            (first + 32, *rest),
            (first, *rest[:-1], rest[-1] + 1) if rest else (first - 1,),
            (0, *rest),
            (*one.dims, 1),
            (*one.dims, 0),
            (*one.dims, 2),
            (1,),
            (),
        ):
            yield f"{one.name} {dims}", model.swapped(i, replace(one, dims=dims)).write()
        for type_ in (*TYPES, 4, 31, 43, 2**31, 2**32 - 1):
            if type_ not in TYPES or first % TYPES[type_][0] == 0:
                yield (
                    f"{one.name} of type {type_}",
                    model.swapped(i, replace(one, type=type_, data=b"")).write(),
                )
        yield f"{one.name} missing", model.swapped(i).write()
        yield f"{one.name} twice", model.swapped(i, one, one).write()
        yield f"{one.name} renamed", model.swapped(i, replace(one, name="x" + one.name)).write()
        yield (
            f"{one.name} of another layer",
            model.swapped(i, one, replace(one, name=one.name.replace("blk.0.", "blk.99."))).write(),
        )
        nans = b"\xff" * one.size
        yield f"{one.name} of NaN", model.swapped(i, replace(one, data=nans)).write()


def _layouts(model: Model) -> Iterator[Mutant]:
    last = len(model.tensors) - 1
    for label, moved in (
        ("1 byte on", lambda i, at: at + (i == last)),
        ("all at once", lambda i, at: 0),
        ("far", lambda i, at: at if i < last else 1 << 60),
        ("before", lambda i, at: at if i < last else 2**64 - 32),
    ):
        yield f"offsets: {label}", model.write(moved)
    good = model.write()
    for kept in (0, 4, 8, 23, 24, 100, len(good) // 2, len(good) - 1):
        yield f"cut at {kept}", good[:kept]
    for at, value in ((4, 0), (4, 1), (4, 2), (4, 4), (4, 3 << 24), (8, 0), (8, 2**31), (16, 0), (16, 2**31)):
        yield f"{value} at {at}", good[:at] + struct.pack("<I", value) + good[at + 4 :]
