"""Small chat templates that treat tools as those of well-known models do, and a tokenizer for them.

In data/chat_templates: each by the name of the format that it is to be recognised as. DeepSeek's take
arguments as text, and the fenced one asks whether there is content; `chatml` knows of no tools, as SmolLM2's
own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "chat_templates"
FILES = {file.stem: file.read_text("utf-8") for file in sorted(FOLDER.glob("*.jinja"))}
CHATML = FILES["chatml"]
TEMPLATES = {name: text for name, text in FILES.items() if name != "chatml"}
CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]")


def tokenizer_of(template: Any) -> Any:
    """Return a transformers tokenizer with one token a byte and a few control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={piece: id_ for id_, piece in enumerate(letters)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in CONTROLS])
    made.add_tokens([AddedToken("<tool_call>"), AddedToken("</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer
