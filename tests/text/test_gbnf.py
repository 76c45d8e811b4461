"""GBNF's language is llama.cpp's: every case is also read by llama.cpp itself."""

from __future__ import annotations

import ctypes

import pytest

from paceline.backends.llama_cpp.binding import llama_cpp, load_model
from paceline.backends.llama_cpp.text import LlamaText
from paceline.speculative.errors import UsageError
from paceline.text.grammar_source import parse_grammar
from real_model import smollm2

JSON = r"""
root   ::= object   # a comment with "quotes"
value  ::= object | [0-9]+ | string | ("true" | "null")
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}"
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" (["\\nt] | "u" [0-9a-fA-F]{4}) )* "\""
ws     ::= | " " | "\n" [ \t]{0,3}
"""
CASES = {
    JSON: ("{}", '{"a": 12,\n  "é": {"b":null}}', '{"a"}', '{"a": "\\u00e9\\n"}', '{"a": "\n"}', "{"),
    # A greedy lexer would give the x to w, and both letters to the first w.
    'root ::= w "x"\nw ::= [a-z]+': ("abx", "ab", "xx", "x"),
    "root ::= w w\nw ::= [a-z]+": ("ab", "a"),
    'root ::= .* "end"': ("end", "endend", "\nend", "en"),
    'root ::= x-1 y\nx-1 ::= "a"*\ny ::= "ab"': ("ab", "aaab", "b"),
    'root ::= [-a] [a-c-] "/"{2,} "\\u00e9"? | "" ': ("-b//", "a-///é", "a-/", "", "d"),
    r"root ::= [+\x2d9]": ("-", "5"),
    'root ::= ("a" |\n "b"){2}\n': ("ab", "a", "abb"),
    'root ::= "\\x41\\U0001F600" [^\\n]': ("A😀x", "A😀\n"),
}


@pytest.fixture(scope="module")
def vocabulary() -> tuple[LlamaText, object]:
    model = load_model(smollm2(), vocab_only=True)
    return LlamaText(model), llama_cpp().llama_model_get_vocab(model)


def llama_accepts(text: LlamaText, vocab: object, grammar: str, value: str) -> bool:
    """Whether llama.cpp allows every token of a text and its end."""
    cpp, eos = llama_cpp(), 2
    sampler = cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    assert sampler
    for token in [*text.encode(value, add_bos=False), eos]:
        data = (cpp.llama_token_data * 1)(cpp.llama_token_data(token, 0.0, 0.0))
        array = cpp.llama_token_data_array(data=data, size=1, selected=-1, sorted=False)
        cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        if array.data[0].logit == -float("inf"):
            break
        cpp.llama_sampler_accept(sampler, token)
    else:
        cpp.llama_sampler_free(sampler)
        return True
    cpp.llama_sampler_free(sampler)
    return False


@pytest.mark.parametrize(("grammar", "texts"), CASES.items(), ids=range(len(CASES)))
def test_a_grammar_has_the_texts_it_has_in_llama_cpp(
    grammar: str, texts: tuple[str, ...], vocabulary: tuple[LlamaText, object]
) -> None:
    syntax = parse_grammar(grammar=grammar)
    assert syntax is not None
    ours = [syntax.matches(text) for text in texts]
    assert ours == [llama_accepts(*vocabulary, grammar, text) for text in texts]
    assert {True, False} == set(ours)


@pytest.mark.parametrize(
    ("grammar", "complaint"),
    [
        ("", "there is no rule root: add root ::= ..."),
        ('x ::= "a"', "there is no rule root"),
        ("root ::= a", "there is no rule a"),
        ('root ::= "a"\nroot ::= "b"', "there are two rules root"),
        ('root ::= "a"\n $', "line 2 cannot be read as GBNF: '$'"),
        (r'root ::= "\q"', "line 1 cannot be read"),
        ("root ::= <[1000]>", "line 1 cannot be read"),
        ('root ::= "a"{1,' + " " * 20_000, "line 1 cannot be read"),
        ("root ::= (", "cannot be used: "),
        ("root ::= [z-a]", "cannot be used: invalid character class range"),
        (r'root ::= "\ud800"', "cannot be used: "),
    ],
)
def test_an_unusable_grammar_is_refused_in_one_line(grammar: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_grammar(grammar=grammar)
    assert str(refusal.value).startswith(("the grammar: ", "the grammar cannot"))
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)
