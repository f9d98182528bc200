"""How this process computes, as far as that changes bits: versions, kernels, switches.

Names what can be asked at once; the rest, the CPU and the libraries that choose by it, is tried.
"""

import hashlib
import sys
from typing import Any

import torch
import torch.nn.functional as F
import transformers

# A forward of the grid, 64 tokens, and widths that no kernel has to itself.
_ROWS, _WIDTH, _HEADS = 64, 576, 9


def routine(model: Any) -> tuple[str, ...]:
    """Return by what the process multiplies and attends: other ways differ in bits.

    Asked before each request, for switches turn at run time; all else stays with the process.
    """
    backends, mkldnn = torch.backends.cuda, torch.backends.mkldnn
    matmul = getattr(mkldnn, "matmul", None)
    precision = matmul.fp32_precision if matmul else torch.get_float32_matmul_precision()
    compiled = "compiled" if getattr(model, "_compiled_call_impl", None) else "eager"
    switches = {
        # Named for a GPU, obeyed by attention on the CPU.
        "flash": backends.flash_sdp_enabled(),
        "math": backends.math_sdp_enabled(),
        "mem_efficient": backends.mem_efficient_sdp_enabled(),
        "mkldnn": mkldnn.enabled,
        # Of this thread, and torch does not say: halved, the least normal number would be 0.
        "denormals": sys.float_info.min / 2 != 0.0,
    }
    on = " ".join(name for name, is_on in switches.items() if is_on)
    attention = str(model.config.get_text_config()._attn_implementation)
    return (
        *(f"torch {torch.__version__}", f"transformers {transformers.__version__}"),
        *(torch.backends.cpu.get_cpu_capability(), precision, compiled, attention, on),
    )


def trial() -> str:
    """Return a digest of what one small product, attention and sine come out as here.

    Libraries choose kernels by the CPU and by variables of their own, which nobody can ask for.
    """
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        ramp = torch.arange(_WIDTH * _WIDTH, dtype=torch.float32, device="cpu")
        square = torch.sin(ramp * 0.37).view(_WIDTH, _WIDTH)
        rows = square[:_ROWS]
        heads = rows.view(1, _ROWS, _HEADS, -1).transpose(1, 2)
        tried = (
            F.linear(rows, square),
            F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).contiguous(),
        )
    state = hashlib.blake2b(digest_size=16)
    for tensor in tried:
        state.update(tensor.numpy())
    return state.hexdigest()
