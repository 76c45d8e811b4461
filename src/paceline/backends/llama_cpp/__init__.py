"""llama.cpp as an engine: any GGUF model that generates text."""

from paceline.backends.llama_cpp.target import LlamaTarget as LlamaTarget
