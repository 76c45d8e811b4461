"""llama.cpp as an engine: any GGUF model that generates text."""

from paceline.engines.llama.target import LlamaTarget as LlamaTarget
