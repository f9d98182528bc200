"""One planted violation for each rule, and beside it the nearest thing that is allowed."""

Files = dict[str, str]

DOC = '"""Own one thing."""\n'
LONG = DOC + "def long():\n" + "    x = 1\n" * 71
DEEP = (
    DOC + "def deep(a):\n    if a:\n        for b in a:\n            while b:\n                {}\n"
)
MARK = "# TO" + "DO later\n"
PLACE = "/wo" + "rk/somewhere"

# Rule: (files with the violation, files without).
PLANTS: dict[str, tuple[Files, Files]] = {
    "imports": (
        {"kvd/core/step.py": DOC + "from kvd.disk.reads import read\n"},
        {
            "kvd/core/step.py": DOC + "import numpy\nfrom kvd.policy.value import value\n",
            "kvd/rpc/border.py": DOC + "from kvd.core.events import FetchWanted\n",
            "kvd/cli/serve.py": DOC + "from kvd.daemon.loop import Loop\n",
        },
    ),
    "heavy imports": (
        {"kvd/client/put.py": DOC + "try:\n    import torch\nexcept ImportError:\n    pass\n"},
        {"kvd/client/put.py": DOC + "def put():\n    import torch\n    return torch\n"},
    ),
    "chance": (
        {"kvd/daemon/loop.py": DOC + "import time\n"},
        {"kvd/clock.py": DOC + "import time\n", "bench/path.py": DOC + "import time\n"},
    ),
    "star imports": (
        {"kvd/core/step.py": DOC + "from kvd.types import *\n"},
        {"kvd/core/step.py": DOC + "from kvd.types import Tier\n"},
    ),
    "device disk": (
        {"kvd/daemon/ssd.py": DOC + "from kvd.disk import device\n"},
        {"kvd/daemon/ssd.py": DOC + "from kvd.disk import posix\n"},
    ),
    "testing only": (
        {"kvd/daemon/boot.py": DOC + "from kvd.testing.world import World\n"},
        {"tests/unit/test_world.py": DOC + "from kvd.testing.world import World\n"},
    ),
    "file lines": (
        {"kvd/core/step.py": DOC + "x = 1\n" * 400},
        {"kvd/core/step.py": DOC + "x = 1\n" * 399, "tests/test_a.py": DOC + "x = 1\n" * 500},
    ),
    "function lines": (
        {"kvd/core/step.py": LONG},
        {"kvd/core/step.py": LONG[:-20], "tests/unit/test_a.py": LONG},
    ),
    "parameters": (
        {"kvd/core/step.py": DOC + "def f(a, b, c, d, e, f, *, g): ...\n"},
        {"kvd/core/step.py": DOC + "class A:\n    def f(self, a, b, c, d, e, f): ...\n"},
    ),
    "flags": (
        {"kvd/core/step.py": DOC + "def f(fast: bool): ...\n"},
        {"kvd/core/step.py": DOC + "def f(*, fast: bool): ...\n"},
    ),
    "methods": (
        {"kvd/core/step.py": DOC + "class A(Protocol):\n" + "    def f(self): ...\n" * 8},
        {"kvd/core/step.py": DOC + "class A:\n" + "    def f(self): ...\n" * 8},
    ),
    "nesting": (
        {"kvd/core/step.py": DEEP.format("with a: pass")},
        {
            "kvd/core/step.py": DEEP.format("pass"),
            "kvd/core/chain.py": DOC
            + "def f(a):\n    if a:\n        pass\n"
            + "    elif a:\n        pass\n" * 5,
        },
    ),
    "asserts": (
        {"kvd/core/step.py": DOC + "assert True\n" * 3 + "x = 1\n" * 300},
        {"kvd/core/step.py": DOC + "assert True\n" * 9 + "x = 1\n" * 300},
    ),
    "broad except": (
        {"kvd/core/step.py": DOC + "try:\n    f()\nexcept (OSError, Exception):\n    pass\n"},
        {
            "kvd/core/step.py": DOC + "try:\n    f()\nexcept OSError:\n    pass\n",
            "kvd/rpc/server.py": DOC + "try:\n    f()\nexcept Exception:\n    pass\n",
        },
    ),
    "open work": ({"kernels/a.cpp": MARK}, {"kernels/a.cpp": "// Whole: see format.md.\n"}),
    "machine paths": (
        {"docs/operations.md": f"# Operations\n\nSee {PLACE}.\n"},
        {"docs/operations.md": "# Operations\n\nSee /run/kvd.\n"},
    ),
    "commented code": (
        {"kvd/core/step.py": DOC + "# state.index.drop(key)\n"},
        {"kvd/core/step.py": DOC + "# Return early: x = 1 is common here.\n# (index)\n"},
    ),
    "names": (
        {"kvd/core/session_manager.py": DOC, "kvd/core/a.py": DOC + "class ReadHandlers: ...\n"},
        {"kvd/core/sessions.py": DOC + "class Database: ...\n"},
    ),
    "prints": (
        {"kvd/daemon/loop.py": DOC + "print(1)\n"},
        {"kvd/cli/status.py": DOC + "print(1)\n"},
    ),
    "hashes": (
        {"kvd/identity.py": DOC + "x = hash('a')\n"},
        {"kvd/identity.py": DOC + "x = state.hash('a')\n"},
    ),
    "environment": (
        {"kvd/daemon/boot.py": DOC + "import os\nx = os.environ['A']\n"},
        {"kvd/config.py": DOC + "import os\nx = os.environ['A']\n"},
    ),
    "sleeps": (
        {"tests/unit/test_a.py": DOC + "time.sleep(0.1)\n"},
        {"tests/unit/test_a.py": DOC + "asyncio.sleep(0)\n"},
    ),
    "type tests": (
        {"kvd/core/evict.py": DOC + "isinstance(a, int)\n"},
        {"kvd/core/step.py": DOC + "isinstance(a, int)\n"},
    ),
    "empty doors": ({"kvd/core/__init__.py": DOC}, {"kvd/client/__init__.py": DOC}),
    "docstrings": (
        {"kvd/core/step.py": "x = 1\n"},
        {"kvd/core/step.py": DOC, "kvd/core/__init__.py": ""},
    ),
    "document length": (
        {"README.md": "# kvd\n" + "line\n" * 150},
        {"README.md": "# kvd\n" + "line\n" * 149},
    ),
    "document known": ({"docs/thoughts.md": "# Thoughts\n"}, {"docs/style.md": "# Style\n"}),
    "document title": (
        {"README.md": "# kvd\n\n# Again\n"},
        {"README.md": "# kvd\n\n```\n# a comment\n```\n\n## Start\n"},
    ),
    "document links": (
        {"docs/style.md": "# Style\n\n[a](format.md)\n"},
        {"docs/style.md": "# Style\n\n[a](../README.md#start)\n", "README.md": "# kvd\n"},
    ),
}
