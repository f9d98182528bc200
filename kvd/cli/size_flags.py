"""The flags of `kvd-admin size`, and what its help says of exit codes and of its JSON."""

import argparse

from kvd.limits import CHUNK_TOKENS_DEFAULT
from kvd.types import Dtype

DTYPES = {dtype.name.lower(): dtype for dtype in Dtype}
EPILOG = """Without MODEL and without numbers the known models are listed. The numbers of another
one are --layers, --kv-heads and --width (of a head), or --layers and --latent-width for a model
that caches one latent (MLA); they also override those of MODEL.

Anchor and residual follow from the shape. The exact class depends on the values: least, usual and
most are 2, 3 and 4 bits a value of BF16, as measured, and 3 more of FP16, which has as many more
bits of mantissa. No values pass the bound, where all is kept raw.
What fits is told for whole chunks, in slabs and segments as the daemon makes them.

exit codes:
  0   told
  2   not told: one line says why

--json prints one object, whose fields keep their meaning; there may come more:
  model, source           as named here, and the repository that its shape is from; empty for others
  layers, kv_heads, width, dtype, latent, chunk_tokens
  values_per_token, raw_bytes_per_token
  coded                   false for a dtype that has no code and is kept as it is
  cases                   least, usual, most, bound: exact_bits (null for the bound), chunk_bytes,
                          bytes_per_token, bits_per_value, and strips: bytes by class
  fits                    tier, size_bytes, case, chunks, tokens, sequences (null without --tokens)
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="a known model")
    for flag, text in (
        ("--layers", "layers that have KV"), ("--kv-heads", "KV heads of each layer"),
        ("--width", "values of a head"), ("--latent-width", "values of a layer's one latent"),
    ):  # fmt: skip
        parser.add_argument(flag, type=int, default=0, metavar="N", help=text)
    parser.add_argument("--dtype", choices=DTYPES, default="", help="of the KV (bf16)")
    parser.add_argument(
        "--chunk-tokens", type=int, default=CHUNK_TOKENS_DEFAULT, metavar="N",
        help=f"tokens of a chunk ({CHUNK_TOKENS_DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", type=int, default=0, metavar="N", help="tokens of a sequence, to count those"
    )
    parser.add_argument("--dram", default="", help="host memory, as 64GiB")
    parser.add_argument("--ssd", default="", help="budget of the disk tier, as 1TiB")
    parser.add_argument(
        "--data-directories", type=int, default=1, metavar="N", help="that share it (1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
