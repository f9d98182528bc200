"""`kvd-admin size` as a command: what it prints, as text and JSON, and what it refuses."""

import json

import pytest

from kvd.cli.admin import main
from kvd.cli.size_flags import EPILOG
from kvd.sizing.models import MODELS


@pytest.fixture
def size(capsys):
    def run(*words):
        code = main(["size", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_known_models_are_listed(size):
    code, out, _ = size()
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(MODELS)
    assert json.loads(size("--json")[1])["models"]["deepseek-v3"] == "deepseek-ai/DeepSeek-V3"


def test_json_is_what_the_help_says(size):
    code, out, _ = size(
        "LLAMA-3.1-8B", "--dram", "64GiB", "--ssd", "1TiB", "--tokens", "8192", "--json"
    )
    told = json.loads(out)
    said = EPILOG.split("--json prints")[1]
    assert code == 0 and told["model"] == "llama-3.1-8b"
    for name in (*told, *told["cases"], *told["cases"]["bound"], *told["fits"][0]):
        assert name in said, name
    assert told["raw_bytes_per_token"] == 131_072 and told["coded"]
    for case in told["cases"].values():
        assert case["chunk_bytes"] == 64 * case["bytes_per_token"] <= sum(case["strips"].values())
    assert told["cases"]["bound"]["exact_bits"] is None
    usual = [fit for fit in told["fits"] if fit["case"] == "usual"]
    assert [fit["tier"] for fit in usual] == ["dram", "ssd"]
    for fit in usual:
        size_bytes = told["cases"]["usual"]["chunk_bytes"] * fit["chunks"]
        assert 0.85 * fit["size_bytes"] < size_bytes <= fit["size_bytes"]
        assert fit["sequences"] == fit["chunks"] // 128 > 0


def test_people_see_the_same_numbers(size):
    out = size("smollm2-135m", "--dram", "4GiB", "--tokens", "4096")[1]
    told = json.loads(size("smollm2-135m", "--dram", "4GiB", "--tokens", "4096", "--json")[1])
    case = told["cases"]["usual"]
    assert f"{case['bytes_per_token']:,.0f} {case['bits_per_value']:.2f}" in " ".join(out.split())
    for fit in told["fits"]:
        assert f"{fit['tokens']:,} tokens" in out and f"{fit['sequences']:,} sequences" in out
    assert "as measured" in out and "no values pass the bound" in out


def test_numbers_of_another_model(size):
    words = ("--layers", "32", "--kv-heads", "8", "--width", "128")
    other, known = (json.loads(size(*each, "--json")[1]) for each in (words, ("llama-3.1-8b",)))
    assert other["cases"] == known["cases"] and other["source"] == ""
    latent = json.loads(size("--layers", "61", "--latent-width", "576", "--json")[1])
    assert latent["cases"] == json.loads(size("deepseek-v3", "--json")[1])["cases"]
    changed = json.loads(size("llama-3.1-8b", "--layers", "16", "--dtype", "fp8_e4m3", "--json")[1])
    assert changed["raw_bytes_per_token"] == 32_768 and not changed["coded"]
    assert "has no code" in size("llama-3.1-8b", "--dtype", "int8")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lama-3.1-8b",), ("'lama-3.1-8b'", "llama-3.1-8b", "`kvd-admin size` lists")),
        (("--layers", "3"), ("--kv-heads and --width", "--latent-width")),
        (("--layers", "2000", "--kv-heads", "1", "--width", "64"), ("2000 layers", "1024")),
        (("--layers", "2", "--latent-width", "8", "--width", "64"), ("--latent-width",)),
        (("llama-3.1-8b", "--dram", "10GB"), ("'10GB'", "GiB")),
        (("llama-3.1-8b", "--dram", "1KiB"), ("'1KiB'", "1MiB")),
        (("llama-3.1-8b", "--ssd", "5MiB"), ("are needed",)),
        (("llama-3.1-8b", "--tokens", "63"), ("--tokens is 63", "64")),
        (("llama-3.1-8b", "--chunk-tokens", "0"), ("--chunk-tokens is 0", "4096")),
        (("llama-3.1-8b", "--data-directories", "256"), ("256", "255")),
        (
            ("--layers=2", "--kv-heads=8", "--width=65536", "--chunk-tokens=4096"),
            ("536870912 bytes", "268435455", "chunk_tokens"),
        ),
        (("--layers=1024", "--kv-heads=1024", "--width=64"), ("2097152 cells", "1048576")),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith(("-", "l")) else "",
)
def test_what_cannot_be_is_refused_in_one_line(size, words, said):
    code, out, err = size(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("kvd-admin: ") and all(each in err for each in said), err
