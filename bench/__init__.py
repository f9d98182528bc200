"""Benches. Some begin processes while gRPC is at work beside them."""

import os

# With it gRPC's handlers run before each fork, and wait for what other threads of gRPC hold: one
# soak in four stood still there. Nothing here uses gRPC behind a fork, but only behind an exec.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
