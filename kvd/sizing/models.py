"""Shapes of the KV of known models, as data. What is not here is given by its numbers.

Each row is from `config.json` of the public repository that it names: num_hidden_layers,
num_key_value_heads, head_dim (hidden_size / num_attention_heads where that is not there); for
latents kv_lora_rank + qk_rope_head_dim. Sliding windows are not subtracted: kvd keeps all layers.
"""

from dataclasses import dataclass

from kvd.shape import BlockShape, KvGroup, TensorShape
from kvd.types import Dtype, Role


@dataclass(frozen=True, slots=True)
class ModelShape:
    """K and V of `heads` heads in each layer; or, with `latent`, one latent of `width`."""

    layers: int
    heads: int
    width: int
    source: str = ""
    latent: bool = False
    dtype: Dtype = Dtype.BF16

    def block_shape(self) -> BlockShape:
        if not self.latent:
            return BlockShape.of_attention(self.layers, self.heads, self.width, self.dtype)
        tensor = TensorShape(Role.LATENT, self.heads, self.width, self.dtype)
        return BlockShape((KvGroup(self.layers, (tensor,)),))


def _mla(layers: int, source: str) -> ModelShape:
    return ModelShape(layers, 1, 512 + 64, source, latent=True)


MODELS = {
    "llama-3.2-1b": ModelShape(16, 8, 64, "meta-llama/Llama-3.2-1B"),
    "llama-3.2-3b": ModelShape(28, 8, 128, "meta-llama/Llama-3.2-3B"),
    "llama-3.1-8b": ModelShape(32, 8, 128, "meta-llama/Llama-3.1-8B"),
    "llama-3.3-70b": ModelShape(80, 8, 128, "meta-llama/Llama-3.3-70B-Instruct"),
    "llama-3.1-405b": ModelShape(126, 8, 128, "meta-llama/Llama-3.1-405B"),
    "qwen2.5-0.5b": ModelShape(24, 2, 64, "Qwen/Qwen2.5-0.5B"),
    "qwen2.5-1.5b": ModelShape(28, 2, 128, "Qwen/Qwen2.5-1.5B"),
    "qwen2.5-3b": ModelShape(36, 2, 128, "Qwen/Qwen2.5-3B"),
    "qwen2.5-7b": ModelShape(28, 4, 128, "Qwen/Qwen2.5-7B"),
    "qwen2.5-14b": ModelShape(48, 8, 128, "Qwen/Qwen2.5-14B"),
    "qwen2.5-32b": ModelShape(64, 8, 128, "Qwen/Qwen2.5-32B"),
    "qwen2.5-72b": ModelShape(80, 8, 128, "Qwen/Qwen2.5-72B"),
    "qwen3-0.6b": ModelShape(28, 8, 128, "Qwen/Qwen3-0.6B"),
    "qwen3-1.7b": ModelShape(28, 8, 128, "Qwen/Qwen3-1.7B"),
    "qwen3-4b": ModelShape(36, 8, 128, "Qwen/Qwen3-4B"),
    "qwen3-8b": ModelShape(36, 8, 128, "Qwen/Qwen3-8B"),
    "qwen3-14b": ModelShape(40, 8, 128, "Qwen/Qwen3-14B"),
    "qwen3-32b": ModelShape(64, 8, 128, "Qwen/Qwen3-32B"),
    "qwen3-30b-a3b": ModelShape(48, 4, 128, "Qwen/Qwen3-30B-A3B"),
    "qwen3-235b-a22b": ModelShape(94, 4, 128, "Qwen/Qwen3-235B-A22B"),
    "mistral-7b": ModelShape(32, 8, 128, "mistralai/Mistral-7B-v0.3"),
    "mistral-nemo-12b": ModelShape(40, 8, 128, "mistralai/Mistral-Nemo-Base-2407"),
    "mistral-small-24b": ModelShape(40, 8, 128, "mistralai/Mistral-Small-24B-Base-2501"),
    "mistral-large-123b": ModelShape(88, 8, 128, "mistralai/Mistral-Large-Instruct-2407"),
    "mixtral-8x7b": ModelShape(32, 8, 128, "mistralai/Mixtral-8x7B-v0.1"),
    "mixtral-8x22b": ModelShape(56, 8, 128, "mistralai/Mixtral-8x22B-v0.1"),
    "gemma-2-2b": ModelShape(26, 4, 256, "google/gemma-2-2b"),
    "gemma-2-9b": ModelShape(42, 8, 256, "google/gemma-2-9b"),
    "gemma-2-27b": ModelShape(46, 16, 128, "google/gemma-2-27b"),
    "gemma-3-1b": ModelShape(26, 1, 256, "google/gemma-3-1b-pt"),
    "gemma-3-4b": ModelShape(34, 4, 256, "google/gemma-3-4b-pt"),
    "gemma-3-12b": ModelShape(48, 8, 256, "google/gemma-3-12b-pt"),
    "gemma-3-27b": ModelShape(62, 16, 128, "google/gemma-3-27b-pt"),
    "deepseek-v2-lite": _mla(27, "deepseek-ai/DeepSeek-V2-Lite"),
    "deepseek-v2": _mla(60, "deepseek-ai/DeepSeek-V2"),
    "deepseek-v3": _mla(61, "deepseek-ai/DeepSeek-V3"),
    "smollm2-135m": ModelShape(30, 3, 64, "HuggingFaceTB/SmolLM2-135M"),
    "smollm2-360m": ModelShape(32, 5, 64, "HuggingFaceTB/SmolLM2-360M"),
    "smollm2-1.7b": ModelShape(24, 32, 64, "HuggingFaceTB/SmolLM2-1.7B"),
    "gpt-oss-20b": ModelShape(24, 8, 64, "openai/gpt-oss-20b"),
    "gpt-oss-120b": ModelShape(36, 8, 64, "openai/gpt-oss-120b"),
}
