"""Paceline's drafters inside of vLLM (docs/engines.md):

vllm serve MODEL --speculative-config '{"method": "custom_class", "model":
"paceline.integrations.vllm.Portfolio",
                                        "num_speculative_tokens": 8}'
"""

from paceline.integrations.vllm.portfolio import Portfolio as Portfolio
