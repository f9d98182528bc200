"""A random Llama of two layers, whose greedy text does not settle into a loop at once."""

import random
from typing import Any

VOCABULARY = 211


def random_llama(**settings: Any) -> Any:
    """Return it in evaluation mode, fp32; the same weights every time, whatever the settings."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **{"max_position_embeddings": 1024, **settings},
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.LlamaForCausalLM(config).eval()
        for weights in model.parameters():
            if weights.ndim > 1:
                torch.nn.init.normal_(weights, std=0.25)
    return model


def random_text(length: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(1, VOCABULARY), k=length)
