"""Paceline's drafters inside vLLM (docs/engines.md):

vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
                                        "model": "paceline.integrations.vllm.Portfolio"}'
"""

from paceline.integrations.vllm.portfolio import Portfolio as Portfolio
