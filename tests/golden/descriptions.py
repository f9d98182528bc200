"""Block shapes, lanes and profiles as a manifest holds them, and back."""

from kvd.codec import CodecProfile, RoleCode
from kvd.codec.layout import GROUP_DEFAULT
from kvd.shape import BlockShape, HitRule, KvGroup, TensorShape
from kvd.types import Dtype, Lane, Part, Role, Shard, ShardScheme


def shape_description(shape: BlockShape) -> list[dict]:
    return [
        {
            "layers": group.layers,
            "hit_rule": group.hit_rule.name,
            "trailing_chunks": group.trailing_chunks,
            "tensors": [
                {
                    "role": t.role.name,
                    "heads": t.heads,
                    "width": t.width,
                    "dtype": t.dtype.name,
                }
                for t in group.tensors
            ],
        }
        for group in shape.groups
    ]


def lane_description(lane: Lane) -> dict:
    return {
        "kv_group": lane.kv_group,
        "shard_scheme": lane.shard.scheme.name,
        "shard_index": lane.shard.index,
        "shard_count": lane.shard.count,
        "part_profile": lane.part.profile.hex(),
        "part_index": lane.part.index,
    }


def profile_description(profile: CodecProfile) -> dict:
    roles = {"K": profile.k, "V": profile.v, "LATENT": profile.latent, "STATE": profile.state}

    def code(role: RoleCode) -> list:
        grouping = role.grouping.name.lower().replace("_", " ")
        return [grouping, role.group or GROUP_DEFAULT[role.grouping], role.anchor_planes]

    return {**{name: code(role) for name, role in roles.items()}, "sinks": profile.sinks}


def shape_of(groups: list[dict]) -> BlockShape:
    return BlockShape(
        tuple(
            KvGroup(
                group["layers"],
                tuple(
                    TensorShape(Role[t["role"]], t["heads"], t["width"], Dtype[t["dtype"]])
                    for t in group["tensors"]
                ),
                HitRule[group["hit_rule"]],
                group["trailing_chunks"],
            )
            for group in groups
        )
    )


def lane_of(lane: dict) -> Lane:
    shard = Shard(ShardScheme[lane["shard_scheme"]], lane["shard_index"], lane["shard_count"])
    part = Part(bytes.fromhex(lane["part_profile"]), lane["part_index"])
    return Lane(lane["kv_group"], shard, part)
