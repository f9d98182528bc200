"""A disk that fails while a daemon lives: stores to memory and reads of what is there go on.

What is durable is answered in time, as not durable while it cannot be; the log says why; and when
the disk works again, so does the tier, of its own accord.
"""

import time
from dataclasses import replace

import pytest

from kvd.client import Delivery, Reason
from kvd.clock import NS_PER_S
from tests.crash.model import KEPT, Model, Prompt
from tests.crash.node import LIMITS, Node
from tests.crash.seam import Failing
from tests.crash.work import Work, fetched
from tests.e2e.ssd_node import until

SEGMENTS = 14
PUT_S, LATE_S = 1.5, 1.0  # A put's deadline, and what a busy machine may add to it.
PUTS_MAX = 60
NOT_DURABLE = (Reason.UNAVAILABLE, Reason.LATE, Reason.NONE)

WRITING = (
    "segment.create", "segment.allocate", "head.write", "head.sync", "segments.sync",
    "strips.write", "strips.sync", "canary.write", "canary.sync", "commit",
)  # fmt: skip
CASES = [
    *((site, "EIO") for site in WRITING),
    *((site, "ENOSPC") for site in ("segment.allocate", "strips.write", "canary.write", "commit")),
]
REASONS = {"EIO": "Input/output error", "ENOSPC": "space left", "ENOENT": "No such file"}
# No fault of the directory: what is there can be written over.
QUIET = (("segment.allocate", "ENOSPC"), ("canary.write", "ENOSPC"))


class Story:
    """A daemon with something durable in it, and what may be asked of it while its disk fails."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node, self.model = node, Model(node.drops)
        self.work = Work(self.model, seed, fresh=True)
        assert node.start()
        for _ in range(4):
            assert self.put("disk").durable

    def put(self, durability: str, deadline_s: float = PUT_S):
        """Put a prompt that was never put, within the deadline."""
        begin = time.monotonic()
        space = self.node.client.keyspace(KEPT)
        stored = self.model.put(space, self.work.invent(KEPT), durability, deadline_s)
        assert time.monotonic() - begin < deadline_s + LATE_S, stored
        return stored

    def put_until_it_fails(self) -> None:
        """Put until what is to fail was met: a put that is not durable for no other reason."""
        for _ in range(PUTS_MAX):
            stored = self.put("disk")
            if not stored.durable and stored.reason in NOT_DURABLE:
                return
        raise AssertionError("nothing failed")

    def assert_serving(self) -> None:
        """Memory takes stores, and what was durable before is found."""
        stored = self.put("memory")
        assert stored.refused == 0, stored
        self.work.look_at_all(self.node.client, "while the disk fails")
        assert not (self.model.wrong or self.model.lost), (self.model.wrong, self.model.lost)

    def assert_well(self) -> None:
        """The tier works again of its own accord, and all is there after a kill."""
        until(lambda: self.put("disk").durable, "what is put is durable again")
        assert self.said("works again") or not self.said("degraded"), self.node.daemon.lines
        self.assert_serving()
        self.node.watch.assert_within()
        assert not self.node.said_badly(), self.node.daemon.lines
        self.node.end()
        code, found = self.node.check()
        assert code == 0, found
        self.model.restarted()
        assert self.node.start()
        self.work.look_at_all(self.node.client, "after it all")
        assert not (self.model.wrong or self.model.lost), (self.model.wrong, self.model.lost)

    def is_whole_on_disk(self, prompt: Prompt) -> bool:
        return self.model.needed(prompt) == (len(prompt.numbers),) * 3

    def said(self, *words: str, begin: int = 0) -> bool:
        """Return whether a line has all the words, of those from `begin` on."""
        lines = self.node.daemon.lines[begin:]
        return any(all(word in line for word in words) for line in lines)


@pytest.fixture
def new_story(new_node, chance):
    def new(**limits: int) -> Story:
        node = new_node(SEGMENTS)
        node.setting = replace(node.setting, limits={**LIMITS, **limits})
        return Story(node, chance.randrange(1 << 30))

    return new


@pytest.mark.parametrize(("site", "how"), CASES)
def test_a_write_that_fails_once_or_for_a_while(site, how, new_story):
    story = new_story()
    story.node.tell(None, Failing(site, how, times=1))
    for _ in range(6):
        story.put("disk")
    story.assert_serving()
    until(lambda: story.put("disk").durable, "once is over")
    begin = len(story.node.daemon.lines)
    story.node.tell(None, Failing(site, how))
    if (site, how) in QUIET:
        for _ in range(6):
            story.put("disk")
    else:
        story.put_until_it_fails()
        until(lambda: story.said("degraded", REASONS[how], begin=begin), "the log says why")
        assert not story.put("disk").durable
    story.assert_serving()
    story.node.tell()
    story.assert_well()


def test_a_commit_that_was_made_and_is_said_to_have_failed(new_story):
    story = new_story()
    for times in (1, 0):
        story.node.tell(None, Failing("commit", "EIO", times, "after"))
        story.put_until_it_fails()
        story.assert_serving()
    story.node.tell()
    story.assert_well()


@pytest.mark.parametrize("how", ("EROFS", "ENOENT"))
def test_a_disk_that_takes_nothing_at_all(how, new_story):
    """Mounted again as read-only, or unmounted: of whatever is written."""
    story = new_story()
    sites = ("*.create", "*.write", "*.sync", "*.allocate", "*.unlink", "commit")
    story.node.tell(None, *(Failing(site, how) for site in sites))
    story.put_until_it_fails()
    story.assert_serving()
    until(lambda: story.said("degraded"), "the log says so")
    story.node.tell()
    story.assert_well()


def test_a_data_directory_that_is_renamed_away(new_story):
    story = new_story()
    [data] = story.node.setting.paths
    away = data.with_name("away")
    data.rename(away)
    until(lambda: story.said("degraded", REASONS["ENOENT"]), "the log says so")
    assert not story.put("disk").durable
    stored = story.put("memory")
    assert stored.refused == 0, stored
    assert not data.exists(), "nobody made another one"
    away.rename(data)
    story.assert_well()


@pytest.mark.parametrize("site", ("strips.write", "strips.sync", "commit", "head.write"))
def test_a_write_that_hangs(site, new_story):
    story = new_story()
    story.node.tell(None, Failing(site, "hang"))
    story.put_until_it_fails()
    story.assert_serving()
    assert not story.put("disk").durable
    story.node.tell()
    story.assert_well()


# ---- reads ----


def from_disk_only(story: Story) -> None:
    """Have nothing in memory: a daemon that has just begun."""
    story.node.end()
    story.model.restarted()
    assert story.node.start()


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("given_up", (False, True))
def test_a_read_that_hangs(delivery, given_up, new_story):
    """It is given up by the daemon at a bound of its own, or before that by who waits."""
    story = new_story(read_ns=NS_PER_S // 2 if given_up else 60 * NS_PER_S)
    from_disk_only(story)
    first = next(p for p in story.model.prompts_put if story.is_whole_on_disk(p))
    space = story.node.client.keyspace(first.keyspace)
    story.node.tell(None, Failing("strips.read", "hang", times=1))
    begin = time.monotonic()
    with fetched(lambda: space.fetch(first.chain, delivery=delivery, deadline_s=2.0)) as fetch:
        list(fetch.arrivals())
        assert fetch.error is not None or fetch.reason == Reason.READ_FAILED, fetch.reason
        assert time.monotonic() - begin < 2.0 + LATE_S
        story.model.compare(first, fetch, lambda: False, "hanging")
    for other in story.model.prompts_put:
        if other.numbers[0] != first.numbers[0]:
            story.work.look_at(story.node.client, other, "beside one that hangs")
    story.node.tell()
    until(lambda: is_whole(story, first, delivery), "it is read once it is let go")
    assert not (story.model.wrong or story.model.lost), (story.model.wrong, story.model.lost)
    story.assert_well()


def is_whole(story: Story, prompt: Prompt, delivery: Delivery) -> bool:
    space = story.node.client.keyspace(prompt.keyspace)
    with fetched(lambda: space.fetch(prompt.chain, delivery=delivery)) as fetch:
        list(fetch.arrivals())
        story.model.compare(prompt, fetch, lambda: False, "let go")
        return fetch.counts == (len(prompt.numbers),) * 3


@pytest.mark.parametrize("how", ("short", "lie", "EIO"))
def test_a_read_that_does_not_bring_what_was_asked_for(how, new_story):
    story = new_story()
    from_disk_only(story)
    story.node.tell(None, Failing("strips.read", how, times=6))
    prompts = list(story.model.prompts_put)
    for _ in range(3):
        for prompt in prompts:
            is_whole(story, prompt, Delivery.MAP)
    assert not story.model.wrong, story.model.wrong
    story.model.damaged()
    for prompt in prompts:
        until(lambda p=prompt: is_put_again(story, p), "what is put again is durable and whole")
    story.assert_well()


def is_put_again(story: Story, prompt: Prompt) -> bool:
    space = story.node.client.keyspace(prompt.keyspace)
    stored = story.model.put(space, prompt, "disk", PUT_S)
    return stored.durable and is_whole(story, prompt, Delivery.BYTES)
