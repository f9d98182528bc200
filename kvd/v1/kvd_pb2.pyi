from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_K: _ClassVar[Role]
    ROLE_V: _ClassVar[Role]
    ROLE_LATENT: _ClassVar[Role]
    ROLE_STATE: _ClassVar[Role]

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_BF16: _ClassVar[Dtype]
    DTYPE_FP16: _ClassVar[Dtype]
    DTYPE_FP32: _ClassVar[Dtype]
    DTYPE_FP8_E4M3: _ClassVar[Dtype]
    DTYPE_FP8_E5M2: _ClassVar[Dtype]
    DTYPE_INT8: _ClassVar[Dtype]

class HitRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HIT_RULE_ALL: _ClassVar[HitRule]
    HIT_RULE_TRAILING: _ClassVar[HitRule]
    HIT_RULE_STATE: _ClassVar[HitRule]

class ShardScheme(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARD_SCHEME_REPLICATED: _ClassVar[ShardScheme]
    SHARD_SCHEME_HEADS: _ClassVar[ShardScheme]
    SHARD_SCHEME_LAYERS: _ClassVar[ShardScheme]

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_KIND_UNSPECIFIED: _ClassVar[ErrorKind]
    INVALID: _ClassVar[ErrorKind]
    DENIED: _ClassVar[ErrorKind]
    INCOMPATIBLE: _ClassVar[ErrorKind]
    OVERLOADED: _ClassVar[ErrorKind]
    LATE: _ClassVar[ErrorKind]
    LOST: _ClassVar[ErrorKind]
    UNAVAILABLE: _ClassVar[ErrorKind]
    CORRUPT: _ClassVar[ErrorKind]

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_MEMORY: _ClassVar[Durability]
    DURABILITY_DISK: _ClassVar[Durability]

class ReserveState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESERVE_STATE_UNSPECIFIED: _ClassVar[ReserveState]
    HAVE: _ClassVar[ReserveState]
    RESERVED: _ClassVar[ReserveState]
    REPLACE: _ClassVar[ReserveState]
    NOT_ADMITTED: _ClassVar[ReserveState]

class NotAdmittedReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_ADMITTED_REASON_NONE: _ClassVar[NotAdmittedReason]
    CAPACITY: _ClassVar[NotAdmittedReason]
    PREFIX_BROKEN: _ClassVar[NotAdmittedReason]
    GROWING: _ClassVar[NotAdmittedReason]
    QUOTA: _ClassVar[NotAdmittedReason]

class SealState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEAL_STATE_UNSPECIFIED: _ClassVar[SealState]
    SEALED: _ClassVar[SealState]
    COALESCED: _ClassVar[SealState]
    SKIPPED: _ClassVar[SealState]
    ORPHANED: _ClassVar[SealState]

class Delivery(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_MAP: _ClassVar[Delivery]
    DELIVERY_BYTES: _ClassVar[Delivery]

class ShortfallReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHORTFALL_REASON_NONE: _ClassVar[ShortfallReason]
    NOT_STORED: _ClassVar[ShortfallReason]
    CONDEMNED: _ClassVar[ShortfallReason]
    NO_ROOM: _ClassVar[ShortfallReason]
    READ_FAILED: _ClassVar[ShortfallReason]
ROLE_UNSPECIFIED: Role
ROLE_K: Role
ROLE_V: Role
ROLE_LATENT: Role
ROLE_STATE: Role
DTYPE_UNSPECIFIED: Dtype
DTYPE_BF16: Dtype
DTYPE_FP16: Dtype
DTYPE_FP32: Dtype
DTYPE_FP8_E4M3: Dtype
DTYPE_FP8_E5M2: Dtype
DTYPE_INT8: Dtype
HIT_RULE_ALL: HitRule
HIT_RULE_TRAILING: HitRule
HIT_RULE_STATE: HitRule
SHARD_SCHEME_REPLICATED: ShardScheme
SHARD_SCHEME_HEADS: ShardScheme
SHARD_SCHEME_LAYERS: ShardScheme
ERROR_KIND_UNSPECIFIED: ErrorKind
INVALID: ErrorKind
DENIED: ErrorKind
INCOMPATIBLE: ErrorKind
OVERLOADED: ErrorKind
LATE: ErrorKind
LOST: ErrorKind
UNAVAILABLE: ErrorKind
CORRUPT: ErrorKind
DURABILITY_MEMORY: Durability
DURABILITY_DISK: Durability
RESERVE_STATE_UNSPECIFIED: ReserveState
HAVE: ReserveState
RESERVED: ReserveState
REPLACE: ReserveState
NOT_ADMITTED: ReserveState
NOT_ADMITTED_REASON_NONE: NotAdmittedReason
CAPACITY: NotAdmittedReason
PREFIX_BROKEN: NotAdmittedReason
GROWING: NotAdmittedReason
QUOTA: NotAdmittedReason
SEAL_STATE_UNSPECIFIED: SealState
SEALED: SealState
COALESCED: SealState
SKIPPED: SealState
ORPHANED: SealState
DELIVERY_MAP: Delivery
DELIVERY_BYTES: Delivery
SHORTFALL_REASON_NONE: ShortfallReason
NOT_STORED: ShortfallReason
CONDEMNED: ShortfallReason
NO_ROOM: ShortfallReason
READ_FAILED: ShortfallReason

class TensorShape(_message.Message):
    __slots__ = ("role", "heads", "width", "dtype")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    role: Role
    heads: int
    width: int
    dtype: Dtype
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., heads: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[_Union[Dtype, str]] = ...) -> None: ...

class KvGroup(_message.Message):
    __slots__ = ("layers", "tensors", "hit_rule", "trailing_chunks")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    HIT_RULE_FIELD_NUMBER: _ClassVar[int]
    TRAILING_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    layers: int
    tensors: _containers.RepeatedCompositeFieldContainer[TensorShape]
    hit_rule: HitRule
    trailing_chunks: int
    def __init__(self, layers: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorShape, _Mapping]]] = ..., hit_rule: _Optional[_Union[HitRule, str]] = ..., trailing_chunks: _Optional[int] = ...) -> None: ...

class Keyspace(_message.Message):
    __slots__ = ("model", "weight_revision", "tokenizer", "chain", "layout", "rope", "adapter", "chunk_tokens", "groups")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ROPE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    model: str
    weight_revision: str
    tokenizer: str
    chain: str
    layout: str
    rope: str
    adapter: str
    chunk_tokens: int
    groups: _containers.RepeatedCompositeFieldContainer[KvGroup]
    def __init__(self, model: _Optional[str] = ..., weight_revision: _Optional[str] = ..., tokenizer: _Optional[str] = ..., chain: _Optional[str] = ..., layout: _Optional[str] = ..., rope: _Optional[str] = ..., adapter: _Optional[str] = ..., chunk_tokens: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[KvGroup, _Mapping]]] = ...) -> None: ...

class RegisterKeyspaceRequest(_message.Message):
    __slots__ = ("keyspace",)
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    keyspace: Keyspace
    def __init__(self, keyspace: _Optional[_Union[Keyspace, _Mapping]] = ...) -> None: ...

class RegisterKeyspaceReply(_message.Message):
    __slots__ = ("keyspace", "digest")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    keyspace: int
    digest: bytes
    def __init__(self, keyspace: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Lane(_message.Message):
    __slots__ = ("kv_group", "shard_scheme", "shard_index", "shard_count", "part_profile", "part_index")
    KV_GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_SCHEME_FIELD_NUMBER: _ClassVar[int]
    SHARD_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PART_PROFILE_FIELD_NUMBER: _ClassVar[int]
    PART_INDEX_FIELD_NUMBER: _ClassVar[int]
    kv_group: int
    shard_scheme: ShardScheme
    shard_index: int
    shard_count: int
    part_profile: bytes
    part_index: int
    def __init__(self, kv_group: _Optional[int] = ..., shard_scheme: _Optional[_Union[ShardScheme, str]] = ..., shard_index: _Optional[int] = ..., shard_count: _Optional[int] = ..., part_profile: _Optional[bytes] = ..., part_index: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "message", "retry_after_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    kind: ErrorKind
    message: str
    retry_after_ms: int
    def __init__(self, kind: _Optional[_Union[ErrorKind, str]] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("keyspace", "lane", "parent", "chain", "sizes", "durability", "deadline_ms")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    keyspace: int
    lane: Lane
    parent: bytes
    chain: bytes
    sizes: bytes
    durability: Durability
    deadline_ms: int
    def __init__(self, keyspace: _Optional[int] = ..., lane: _Optional[_Union[Lane, _Mapping]] = ..., parent: _Optional[bytes] = ..., chain: _Optional[bytes] = ..., sizes: _Optional[bytes] = ..., durability: _Optional[_Union[Durability, str]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("reservation", "generation", "states", "slabs", "offsets", "reason")
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reservation: int
    generation: int
    states: bytes
    slabs: bytes
    offsets: bytes
    reason: NotAdmittedReason
    def __init__(self, reservation: _Optional[int] = ..., generation: _Optional[int] = ..., states: _Optional[bytes] = ..., slabs: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., reason: _Optional[_Union[NotAdmittedReason, str]] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("reservation", "first", "sizes", "roots", "profile", "last", "deadline_ms")
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    reservation: int
    first: int
    sizes: bytes
    roots: bytes
    profile: int
    last: bool
    deadline_ms: int
    def __init__(self, reservation: _Optional[int] = ..., first: _Optional[int] = ..., sizes: _Optional[bytes] = ..., roots: _Optional[bytes] = ..., profile: _Optional[int] = ..., last: bool = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class SealReply(_message.Message):
    __slots__ = ("states", "durable")
    STATES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    states: bytes
    durable: bool
    def __init__(self, states: _Optional[bytes] = ..., durable: bool = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("reservation",)
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    reservation: int
    def __init__(self, reservation: _Optional[int] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("keyspace", "lanes", "chain", "lease", "deadline_ms")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    keyspace: int
    lanes: _containers.RepeatedCompositeFieldContainer[Lane]
    chain: bytes
    lease: bool
    deadline_ms: int
    def __init__(self, keyspace: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[Lane, _Mapping]]] = ..., chain: _Optional[bytes] = ..., lease: bool = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("counts", "lease")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    lease: int
    def __init__(self, counts: _Optional[bytes] = ..., lease: _Optional[int] = ...) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("keyspace", "lanes", "chain", "class_count")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    keyspace: int
    lanes: _containers.RepeatedCompositeFieldContainer[Lane]
    chain: bytes
    class_count: int
    def __init__(self, keyspace: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[Lane, _Mapping]]] = ..., chain: _Optional[bytes] = ..., class_count: _Optional[int] = ...) -> None: ...

class PrefetchReply(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    def __init__(self, counts: _Optional[bytes] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("keyspace", "deadline_ms")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    keyspace: int
    deadline_ms: int
    def __init__(self, keyspace: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ClearReply(_message.Message):
    __slots__ = ("chunks", "held")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    held: int
    def __init__(self, chunks: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("keyspace", "lanes", "chain", "class_count", "layer_begin", "layer_end", "delivery", "rate_bits", "lease", "deadline_ms")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAYER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LAYER_END_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    RATE_BITS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    keyspace: int
    lanes: _containers.RepeatedCompositeFieldContainer[Lane]
    chain: bytes
    class_count: int
    layer_begin: int
    layer_end: int
    delivery: Delivery
    rate_bits: int
    lease: int
    deadline_ms: int
    def __init__(self, keyspace: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[Lane, _Mapping]]] = ..., chain: _Optional[bytes] = ..., class_count: _Optional[int] = ..., layer_begin: _Optional[int] = ..., layer_end: _Optional[int] = ..., delivery: _Optional[_Union[Delivery, str]] = ..., rate_bits: _Optional[int] = ..., lease: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class LanePromise(_message.Message):
    __slots__ = ("generations", "profiles", "slabs", "offsets", "sizes", "roots")
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    generations: bytes
    profiles: bytes
    slabs: bytes
    offsets: bytes
    sizes: bytes
    roots: bytes
    def __init__(self, generations: _Optional[bytes] = ..., profiles: _Optional[bytes] = ..., slabs: _Optional[bytes] = ..., offsets: _Optional[bytes] = ..., sizes: _Optional[bytes] = ..., roots: _Optional[bytes] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("lease", "counts", "lanes", "reason", "lease_ms", "ready")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    lease: int
    counts: bytes
    lanes: _containers.RepeatedCompositeFieldContainer[LanePromise]
    reason: ShortfallReason
    lease_ms: int
    ready: bytes
    def __init__(self, lease: _Optional[int] = ..., counts: _Optional[bytes] = ..., lanes: _Optional[_Iterable[_Union[LanePromise, _Mapping]]] = ..., reason: _Optional[_Union[ShortfallReason, str]] = ..., lease_ms: _Optional[int] = ..., ready: _Optional[bytes] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("ready",)
    READY_FIELD_NUMBER: _ClassVar[int]
    ready: bytes
    def __init__(self, ready: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("plane_class", "lane", "chunk", "offset", "data")
    PLANE_CLASS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    plane_class: int
    lane: int
    chunk: int
    offset: int
    data: bytes
    def __init__(self, plane_class: _Optional[int] = ..., lane: _Optional[int] = ..., chunk: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class FetchDone(_message.Message):
    __slots__ = ("delivered_bytes", "counts", "reason")
    DELIVERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    delivered_bytes: int
    counts: bytes
    reason: ShortfallReason
    def __init__(self, delivered_bytes: _Optional[int] = ..., counts: _Optional[bytes] = ..., reason: _Optional[_Union[ShortfallReason, str]] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("promise", "piece", "done", "ready")
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    promise: Promise
    piece: Piece
    done: FetchDone
    ready: Ready
    def __init__(self, promise: _Optional[_Union[Promise, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ..., done: _Optional[_Union[FetchDone, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease", "corrupt")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    lease: int
    corrupt: bytes
    def __init__(self, lease: _Optional[int] = ..., corrupt: _Optional[bytes] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    def __init__(self, lease: _Optional[int] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("lease_ms",)
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    def __init__(self, lease_ms: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "features", "client")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    features: int
    client: str
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., features: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class Bounds(_message.Message):
    __slots__ = ("piece_bytes_max", "chunks_per_request_max", "lanes_per_request_max", "keyspaces_per_session_max", "requests_per_session_max", "leases_per_session_max", "lease_ms", "deadline_ms", "deadline_ms_max")
    PIECE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_PER_REQUEST_MAX_FIELD_NUMBER: _ClassVar[int]
    LANES_PER_REQUEST_MAX_FIELD_NUMBER: _ClassVar[int]
    KEYSPACES_PER_SESSION_MAX_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SESSION_MAX_FIELD_NUMBER: _ClassVar[int]
    LEASES_PER_SESSION_MAX_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    piece_bytes_max: int
    chunks_per_request_max: int
    lanes_per_request_max: int
    keyspaces_per_session_max: int
    requests_per_session_max: int
    leases_per_session_max: int
    lease_ms: int
    deadline_ms: int
    deadline_ms_max: int
    def __init__(self, piece_bytes_max: _Optional[int] = ..., chunks_per_request_max: _Optional[int] = ..., lanes_per_request_max: _Optional[int] = ..., keyspaces_per_session_max: _Optional[int] = ..., requests_per_session_max: _Optional[int] = ..., leases_per_session_max: _Optional[int] = ..., lease_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., deadline_ms_max: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "features", "session", "nonce", "token", "epoch", "daemon", "frame_bytes_max", "bounds")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    features: int
    session: int
    nonce: bytes
    token: str
    epoch: int
    daemon: str
    frame_bytes_max: int
    bounds: Bounds
    def __init__(self, protocol: _Optional[int] = ..., features: _Optional[int] = ..., session: _Optional[int] = ..., nonce: _Optional[bytes] = ..., token: _Optional[str] = ..., epoch: _Optional[int] = ..., daemon: _Optional[str] = ..., frame_bytes_max: _Optional[int] = ..., bounds: _Optional[_Union[Bounds, _Mapping]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("hello",)
    HELLO_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("welcome", "notice")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    notice: Notice
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class SlabGiven(_message.Message):
    __slots__ = ("slab", "size", "writable")
    SLAB_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    slab: int
    size: int
    writable: bool
    def __init__(self, slab: _Optional[int] = ..., size: _Optional[int] = ..., writable: bool = ...) -> None: ...

class SlabRecalled(_message.Message):
    __slots__ = ("slab",)
    SLAB_FIELD_NUMBER: _ClassVar[int]
    slab: int
    def __init__(self, slab: _Optional[int] = ...) -> None: ...

class SlabGone(_message.Message):
    __slots__ = ("slab",)
    SLAB_FIELD_NUMBER: _ClassVar[int]
    slab: int
    def __init__(self, slab: _Optional[int] = ...) -> None: ...

class SlabDetached(_message.Message):
    __slots__ = ("slab",)
    SLAB_FIELD_NUMBER: _ClassVar[int]
    slab: int
    def __init__(self, slab: _Optional[int] = ...) -> None: ...

class ToClient(_message.Message):
    __slots__ = ("welcome", "refused", "slab_given", "slab_recalled", "slab_gone")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SLAB_GIVEN_FIELD_NUMBER: _ClassVar[int]
    SLAB_RECALLED_FIELD_NUMBER: _ClassVar[int]
    SLAB_GONE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refused: Error
    slab_given: SlabGiven
    slab_recalled: SlabRecalled
    slab_gone: SlabGone
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Error, _Mapping]] = ..., slab_given: _Optional[_Union[SlabGiven, _Mapping]] = ..., slab_recalled: _Optional[_Union[SlabRecalled, _Mapping]] = ..., slab_gone: _Optional[_Union[SlabGone, _Mapping]] = ...) -> None: ...

class ToDaemon(_message.Message):
    __slots__ = ("hello", "slab_detached")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SLAB_DETACHED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    slab_detached: SlabDetached
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., slab_detached: _Optional[_Union[SlabDetached, _Mapping]] = ...) -> None: ...

class Bind(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Bound(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Credit(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("lease_lost", "draining")
    LEASE_LOST_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    lease_lost: int
    draining: bool
    def __init__(self, lease_lost: _Optional[int] = ..., draining: bool = ...) -> None: ...
