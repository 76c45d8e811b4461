"""Commands for other engines, and the class that vLLM calls, without vLLM: `python examples/engines.py`."""

from time import perf_counter
from types import SimpleNamespace

import numpy as np

from paceline.integrations.export import EngineRequest, command, redacted_command
from paceline.integrations.vllm import Portfolio
from paceline.speculative.errors import UsageError

for engine in ("vllm", "sglang"):
    print(redacted_command(command(engine, EngineRequest("Qwen/Qwen3-8B", n_draft=8, n_ctx=8192))))
    print(
        redacted_command(
            command(engine, EngineRequest("Qwen/Qwen3-8B", draft="Qwen/Qwen3-0.6B-Base", n_draft=4))
        )
    )
try:
    command(
        "sglang", EngineRequest("Qwen/Qwen3-8B", extra_args=("--speculative-accept-threshold-acc", "0.5"))
    )
except UsageError as error:
    print(f"refused: {error}")

# As vLLM does after every step: the texts of all requests in one array, how long each is, and what is new.
config = SimpleNamespace(
    speculative_config=SimpleNamespace(num_speculative_tokens=8),
    model_config=SimpleNamespace(max_model_len=512, get_vocab_size=lambda: 1000),
    parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    additional_config={"paceline": {"p_min": 0.2}},
)
portfolio = Portfolio(config)
text = [*range(100, 130)] * 8  # what the model is going to say: the same thirty tokens again and again
texts, n, draft, drafted, accepted, steps = np.zeros((4, 512), np.int32), 30, list[int](), 0, 0, 0
texts[0, :n] = text[:n]
began = perf_counter()
while n < len(text):
    right = 0
    while right < len(draft) and n + right < len(text) and draft[right] == text[n + right]:
        right += 1
    new = text[n : n + right + 1]
    texts[0, n : n + len(new)] = new
    n += len(new)
    (draft,) = portfolio.propose([new], np.array([n, 0, 0, 0], np.int32), texts)
    drafted, accepted, steps = drafted + len(draft), accepted + right, steps + 1
took = perf_counter() - began
print(f"{steps} steps for {len(text) - 30} tokens, {accepted} of {drafted} drafted tokens accepted")
print(f"{took / steps * 1e6:.0f} microseconds a request and step")
