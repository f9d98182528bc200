"""Time to the first token over a slow link: anchors first against caches of 16, 8.5 and 4.5 bits.

All come from one daemon by the same paced byte delivery and end in the same tail forward.
"""

import statistics

from bench.plain import PLAIN
from bench.report import Report, progress
from bench.scene import LINK_BITS, NAMES, Document, Scene, document
from bench.serving import served
from kvd.client import Client
from kvd.speculate.outcome import Options, Outcome

COMPARED_TOKENS = 64
REPEATS, REPEATS_FULL = 5, 9
_ANSWER = Options(new_tokens=16)


def run(report: Report, full: bool) -> None:
    """Report the figures of `ttft`; full takes every text and more repeats."""
    from bench.model import load_model

    names = NAMES if full else NAMES[:1]
    repeats = REPEATS_FULL if full else REPEATS
    model, tokenizer = load_model()
    with served() as directory, Client(directory) as client:
        if not client.wait_connected(10):
            raise RuntimeError(client.status().reason)
        scene = Scene(model, client)
        times, same = [], True
        for name in names:
            text = document(tokenizer, name)
            steps = len(text.stored) // 64 + repeats + 2
            with progress(f"ttft: {name}", total=steps) as advance:
                scene.warm(text.prompt, COMPARED_TOKENS)
                scene.store(text.stored, lambda *_: advance("prefill"))
                same &= _identical(scene, text)
                advance("tokens compared")
                times += [_round(scene, text, advance) for _ in range(repeats)]
    _report(report, times, same)


def _identical(scene: Scene, text: Document) -> bool:
    """Compare committed tokens, drafted over the slow link, with the reference's."""
    found = scene.by_kvd(text.prompt, Options(COMPARED_TOKENS))
    reference = scene.by_reference(text.prompt, COMPARED_TOKENS)
    assert len(reference.tokens) == COMPARED_TOKENS and reference.missing_chunks == 0
    return found.tokens == reference.tokens and found.missing_chunks == 0


def _round(scene: Scene, text: Document, advance) -> dict[str, float]:
    """Measure every way once, in turns; return seconds by name."""
    outcome: Outcome = scene.by_kvd(text.prompt, _ANSWER)
    assert outcome.missing_chunks == 0, outcome
    # Nothing drafted, as time was too short for it: then the first token was a committed one.
    first_ns = outcome.first_draft_ns or outcome.first_commit_ns
    seconds = {
        "drafted": first_ns / 1e9,
        "committed": outcome.first_commit_ns / 1e9,
        "drafts": outcome.counts.drafted_ahead,
        "accepted": outcome.counts.accepted_ahead,
    }
    for plain in PLAIN:
        seconds[plain.name] = scene.by_plain(plain, text.prompt)[0] / 1e9
    advance("measured")
    return seconds


def _report(report: Report, times: list[dict[str, float]], same: bool) -> None:
    median = {name: statistics.median(entry[name] for entry in times) for name in times[0]}
    link = f"{LINK_BITS // 1_000_000} Mbit/s, {len(times)} interleaved rounds"
    ways = (
        ("ttft.draft_over_int8", "drafted", "8.5 bit"),
        ("ttft.draft_over_int4", "drafted", "4.5 bit"),
        ("ttft.committed_over_bf16", "committed", "BF16"),
    )
    for name, ours, theirs in ways:
        # Rounds are compared with themselves first: what slows a machine slows a whole round.
        ratio = statistics.median(entry[ours] / entry[theirs] for entry in times)
        note = f"{ours} {median[ours]:.2f} s, {theirs} {median[theirs]:.2f} s; {link}"
        report.figure(
            name, ratio, "ratio", baseline=median[theirs], ratio=ratio, note=f"{note}; {_HOW}"
        )
    ahead = f"{median['drafts']:g} drafted ahead, {median['accepted']:g} accepted"
    note = f"{COMPARED_TOKENS} tokens a text against the full cache; {ahead}"
    report.figure("ttft.tokens_identical", int(same), "bool", note=note)


_HOW = (
    "baselines: raw tensors of that size by the same byte delivery, decoded by numpy layer by layer"
    " as they arrive, the same tail forward waiting for each layer"
)
