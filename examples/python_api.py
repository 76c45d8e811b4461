"""Load, generate, stream, and look at what drafting did: `python examples/python_api.py`."""

import paceline

PROMPT = '{"tool": "search", "arguments": {"query": "open files", "limit": 10}}\n{"tool": "search",'

with paceline.load() as llm:  # or paceline.load("target.gguf", draft="draft.gguf", n_draft=16)
    done = llm.generate(PROMPT, max_tokens=64)
    print(done.text)
    print(f"{done.tokens_per_second:.0f} tokens/s, {done.stats.acceptance_length:.2f} tokens a step")

    for piece in llm.stream(PROMPT, max_tokens=64, temperature=0.8, top_k=40, seed=7, stop=["\n"]):
        print(piece.text, end="", flush=True)
    print()
