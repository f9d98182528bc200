"""The flags of `kvd check`, and what its help says of exit codes and of its JSON."""

import argparse

EPILOG = """data directories:
  give all directories of one set; a daemon must not be using them. Nothing is made and, without
  --repair, nothing is changed but the lock files.

exit codes:
  0   whole. A crash may have left things that harm nobody and that the next start clears away
  1   something is wrong; with --repair: it was, and what is wrong has been dropped
  2   not checked, or not repaired: one line says why (in use, not ours, another version, no set)

repair drops what is wrong and never guesses. A chunk loses the class of a wrong strip and those
behind it, and so do all chunks that were built on it; segments that are damaged as a whole are
removed. What cannot be read is dropped only where its medium has lost it, and gives other files
of the same directory; else nothing is changed, and the exit code is 2. Of a damaged catalog nothing
is believed: it is removed, with all segments. A superblock is written again where the rest of the
set tells what it was. Everything is synced, and a crash in between leaves only what the next check
finds.

--json prints one object, whose fields keep their meaning; there may come more:
  whole              nothing is wrong
  quick, repaired    as asked for; all other fields say what was found before a repair
  wrong, left        findings by kind, of what is wrong and of what a crash leaves: superblock,
                     canary, catalog, row, chain, segment, strip, cell, file, space
  findings           the first 100 of each kind: kind, level (wrong, left), where, what, repair
  findings_left_out  how many more there are
  directories        path, uuid, allocated_bytes: its parts segments_bytes, catalog_bytes and
                     other_bytes; each counts blocks, and a file with holes as if it had none
  catalog            path; chunks, keyspaces, generation; how many chunks repair leaves with fewer
                     classes (shortened) or without any (dropped). null when there is none
  classes            for anchor, residual, exact: segments, strips, live_bytes, dead_bytes,
                     free_bytes (named by the catalog; not to be read again; yet to be written)
  segments           the same of each: directory (a path), segment, class, state, epoch, strips,
                     live_bytes, dead_bytes, free_bytes
  read               strips, cells and bytes whose checksums were compared
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "--data", action="append", required=True, metavar="DIR",
        help="data directory; again for each one of the set",
    )  # fmt: skip
    parser.add_argument("--repair", action="store_true", help="drop what is wrong")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="do not read the strips")
