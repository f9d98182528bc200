"""A daemon ended while it leaves its dram to the next one, or takes it: never wrong bytes."""

from tests.crash.handovers import KILLS, end_handovers, supervised_node


def test_a_handover_may_end_anywhere(nursery, quick_directory, chance, tally):
    begin, met = tally.faults, len(tally.points)
    node = supervised_node(nursery, quick_directory / "node")
    try:
        for _ in end_handovers(node, tally, chance, KILLS):
            assert tally.faults == begin
    finally:
        node.close()
    assert tally.faults == begin
    assert len(tally.points) == met + len(KILLS), tally.missed
