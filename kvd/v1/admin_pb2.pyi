from kvd.v1 import kvd_pb2 as _kvd_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("version", "protocol_min", "protocol_max", "pid", "epoch", "uptime_ms", "state", "problems", "tiers", "sessions", "leases", "reservations", "fetches_waiting", "pins", "generation", "tenants", "directory", "keyspaces")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    FETCHES_WAITING_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    KEYSPACES_FIELD_NUMBER: _ClassVar[int]
    version: str
    protocol_min: int
    protocol_max: int
    pid: int
    epoch: int
    uptime_ms: int
    state: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    tiers: _containers.RepeatedCompositeFieldContainer[TierInfo]
    sessions: int
    leases: int
    reservations: int
    fetches_waiting: int
    pins: int
    generation: int
    tenants: _containers.RepeatedScalarFieldContainer[str]
    directory: str
    keyspaces: int
    def __init__(self, version: _Optional[str] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., pid: _Optional[int] = ..., epoch: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., state: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ..., tiers: _Optional[_Iterable[_Union[TierInfo, _Mapping]]] = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., reservations: _Optional[int] = ..., fetches_waiting: _Optional[int] = ..., pins: _Optional[int] = ..., generation: _Optional[int] = ..., tenants: _Optional[_Iterable[str]] = ..., directory: _Optional[str] = ..., keyspaces: _Optional[int] = ...) -> None: ...

class Amount(_message.Message):
    __slots__ = ("name", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class ClassInfo(_message.Message):
    __slots__ = ("name", "strips", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STRIPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    strips: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., strips: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class TierInfo(_message.Message):
    __slots__ = ("name", "capacity", "limit", "states", "classes", "tenants", "segments", "directories", "waiting_to_be_written", "being_read", "fault")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    WAITING_TO_BE_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    BEING_READ_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity: int
    limit: int
    states: _containers.RepeatedCompositeFieldContainer[Amount]
    classes: _containers.RepeatedCompositeFieldContainer[ClassInfo]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantShare]
    segments: _containers.RepeatedCompositeFieldContainer[Amount]
    directories: _containers.RepeatedCompositeFieldContainer[DirectoryInfo]
    waiting_to_be_written: int
    being_read: int
    fault: str
    def __init__(self, name: _Optional[str] = ..., capacity: _Optional[int] = ..., limit: _Optional[int] = ..., states: _Optional[_Iterable[_Union[Amount, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[ClassInfo, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantShare, _Mapping]]] = ..., segments: _Optional[_Iterable[_Union[Amount, _Mapping]]] = ..., directories: _Optional[_Iterable[_Union[DirectoryInfo, _Mapping]]] = ..., waiting_to_be_written: _Optional[int] = ..., being_read: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...

class TenantShare(_message.Message):
    __slots__ = ("tenant", "classes", "quota")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    classes: _containers.RepeatedCompositeFieldContainer[ClassInfo]
    quota: int
    def __init__(self, tenant: _Optional[str] = ..., classes: _Optional[_Iterable[_Union[ClassInfo, _Mapping]]] = ..., quota: _Optional[int] = ...) -> None: ...

class DirectoryInfo(_message.Message):
    __slots__ = ("path", "free", "fault")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    path: str
    free: int
    fault: str
    def __init__(self, path: _Optional[str] = ..., free: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...

class TiersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TiersReply(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierInfo]
    def __init__(self, tiers: _Optional[_Iterable[_Union[TierInfo, _Mapping]]] = ...) -> None: ...

class SessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session", "tenant", "state", "uid", "pid", "client", "age_ms", "requests", "leases", "lease_bytes", "reservations", "slabs", "keyspaces", "transport")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    KEYSPACES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    session: int
    tenant: str
    state: str
    uid: int
    pid: int
    client: str
    age_ms: int
    requests: int
    leases: int
    lease_bytes: int
    reservations: int
    slabs: int
    keyspaces: int
    transport: str
    def __init__(self, session: _Optional[int] = ..., tenant: _Optional[str] = ..., state: _Optional[str] = ..., uid: _Optional[int] = ..., pid: _Optional[int] = ..., client: _Optional[str] = ..., age_ms: _Optional[int] = ..., requests: _Optional[int] = ..., leases: _Optional[int] = ..., lease_bytes: _Optional[int] = ..., reservations: _Optional[int] = ..., slabs: _Optional[int] = ..., keyspaces: _Optional[int] = ..., transport: _Optional[str] = ...) -> None: ...

class SessionsReply(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class KeyspacesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeyspaceInfo(_message.Message):
    __slots__ = ("digest", "tenant", "keyspace", "chunks", "dram", "ssd", "lanes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    DRAM_FIELD_NUMBER: _ClassVar[int]
    SSD_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    tenant: str
    keyspace: _kvd_pb2.Keyspace
    chunks: int
    dram: _containers.RepeatedCompositeFieldContainer[ClassInfo]
    ssd: _containers.RepeatedCompositeFieldContainer[ClassInfo]
    lanes: _containers.RepeatedCompositeFieldContainer[_kvd_pb2.Lane]
    def __init__(self, digest: _Optional[bytes] = ..., tenant: _Optional[str] = ..., keyspace: _Optional[_Union[_kvd_pb2.Keyspace, _Mapping]] = ..., chunks: _Optional[int] = ..., dram: _Optional[_Iterable[_Union[ClassInfo, _Mapping]]] = ..., ssd: _Optional[_Iterable[_Union[ClassInfo, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[_kvd_pb2.Lane, _Mapping]]] = ...) -> None: ...

class KeyspacesReply(_message.Message):
    __slots__ = ("keyspaces",)
    KEYSPACES_FIELD_NUMBER: _ClassVar[int]
    keyspaces: _containers.RepeatedCompositeFieldContainer[KeyspaceInfo]
    def __init__(self, keyspaces: _Optional[_Iterable[_Union[KeyspaceInfo, _Mapping]]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Bucket(_message.Message):
    __slots__ = ("le", "count")
    LE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    le: float
    count: float
    def __init__(self, le: _Optional[float] = ..., count: _Optional[float] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("name", "kind", "labels", "value", "buckets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    value: float
    buckets: _containers.RepeatedCompositeFieldContainer[Bucket]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., value: _Optional[float] = ..., buckets: _Optional[_Iterable[_Union[Bucket, _Mapping]]] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("at_ms", "samples")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    def __init__(self, at_ms: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("keyspace", "chain", "lanes")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    keyspace: bytes
    chain: bytes
    lanes: _containers.RepeatedCompositeFieldContainer[_kvd_pb2.Lane]
    def __init__(self, keyspace: _Optional[bytes] = ..., chain: _Optional[bytes] = ..., lanes: _Optional[_Iterable[_Union[_kvd_pb2.Lane, _Mapping]]] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("ago_ms", "why", "plane_class")
    AGO_MS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PLANE_CLASS_FIELD_NUMBER: _ClassVar[int]
    ago_ms: int
    why: str
    plane_class: str
    def __init__(self, ago_ms: _Optional[int] = ..., why: _Optional[str] = ..., plane_class: _Optional[str] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("field", "asked", "own")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    field: str
    asked: str
    own: str
    def __init__(self, field: _Optional[str] = ..., asked: _Optional[str] = ..., own: _Optional[str] = ...) -> None: ...

class AlikeKeyspace(_message.Message):
    __slots__ = ("tenant", "digest", "differences")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    digest: bytes
    differences: _containers.RepeatedCompositeFieldContainer[Difference]
    def __init__(self, tenant: _Optional[str] = ..., digest: _Optional[bytes] = ..., differences: _Optional[_Iterable[_Union[Difference, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("verdict", "classes", "notes", "alike", "forgetful", "heard_ms")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ALIKE_FIELD_NUMBER: _ClassVar[int]
    FORGETFUL_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    classes: int
    notes: _containers.RepeatedCompositeFieldContainer[Note]
    alike: _containers.RepeatedCompositeFieldContainer[AlikeKeyspace]
    forgetful: bool
    heard_ms: int
    def __init__(self, verdict: _Optional[str] = ..., classes: _Optional[int] = ..., notes: _Optional[_Iterable[_Union[Note, _Mapping]]] = ..., alike: _Optional[_Iterable[_Union[AlikeKeyspace, _Mapping]]] = ..., forgetful: bool = ..., heard_ms: _Optional[int] = ...) -> None: ...

class LaneReport(_message.Message):
    __slots__ = ("lane", "asked", "counts", "in_dram", "on_disk", "first", "finding")
    LANE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IN_DRAM_FIELD_NUMBER: _ClassVar[int]
    ON_DISK_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    FINDING_FIELD_NUMBER: _ClassVar[int]
    lane: _kvd_pb2.Lane
    asked: int
    counts: _containers.RepeatedScalarFieldContainer[int]
    in_dram: _containers.RepeatedScalarFieldContainer[int]
    on_disk: _containers.RepeatedScalarFieldContainer[int]
    first: int
    finding: Finding
    def __init__(self, lane: _Optional[_Union[_kvd_pb2.Lane, _Mapping]] = ..., asked: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ..., in_dram: _Optional[_Iterable[int]] = ..., on_disk: _Optional[_Iterable[int]] = ..., first: _Optional[int] = ..., finding: _Optional[_Union[Finding, _Mapping]] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("tenant", "lanes")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    lanes: _containers.RepeatedCompositeFieldContainer[LaneReport]
    def __init__(self, tenant: _Optional[str] = ..., lanes: _Optional[_Iterable[_Union[LaneReport, _Mapping]]] = ...) -> None: ...

class MissesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MissInfo(_message.Message):
    __slots__ = ("ago_ms", "tenant", "session", "keyspace", "model", "lane", "chunk", "first", "asked", "finding", "times")
    AGO_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    FINDING_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    ago_ms: int
    tenant: str
    session: int
    keyspace: bytes
    model: str
    lane: _kvd_pb2.Lane
    chunk: bytes
    first: int
    asked: int
    finding: Finding
    times: int
    def __init__(self, ago_ms: _Optional[int] = ..., tenant: _Optional[str] = ..., session: _Optional[int] = ..., keyspace: _Optional[bytes] = ..., model: _Optional[str] = ..., lane: _Optional[_Union[_kvd_pb2.Lane, _Mapping]] = ..., chunk: _Optional[bytes] = ..., first: _Optional[int] = ..., asked: _Optional[int] = ..., finding: _Optional[_Union[Finding, _Mapping]] = ..., times: _Optional[int] = ...) -> None: ...

class MissesReply(_message.Message):
    __slots__ = ("misses",)
    MISSES_FIELD_NUMBER: _ClassVar[int]
    misses: _containers.RepeatedCompositeFieldContainer[MissInfo]
    def __init__(self, misses: _Optional[_Iterable[_Union[MissInfo, _Mapping]]] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("tenant", "keyspace", "bytes", "lossy")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    keyspace: bytes
    bytes: int
    lossy: bool
    def __init__(self, tenant: _Optional[str] = ..., keyspace: _Optional[bytes] = ..., bytes: _Optional[int] = ..., lossy: bool = ...) -> None: ...

class EvictReply(_message.Message):
    __slots__ = ("strips", "bytes")
    STRIPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    strips: int
    bytes: int
    def __init__(self, strips: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("tenant", "keyspace", "deadline_ms")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    keyspace: bytes
    deadline_ms: int
    def __init__(self, tenant: _Optional[str] = ..., keyspace: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("keyspace", "chain", "class_count")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    keyspace: bytes
    chain: bytes
    class_count: int
    def __init__(self, keyspace: _Optional[bytes] = ..., chain: _Optional[bytes] = ..., class_count: _Optional[int] = ...) -> None: ...

class PinReply(_message.Message):
    __slots__ = ("pin", "counts", "bytes")
    PIN_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    pin: int
    counts: _containers.RepeatedScalarFieldContainer[int]
    bytes: int
    def __init__(self, pin: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ..., bytes: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: int
    def __init__(self, pin: _Optional[int] = ...) -> None: ...

class UnpinReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinInfo(_message.Message):
    __slots__ = ("pin", "tenant", "keyspace", "chunk", "counts", "bytes", "age_ms")
    PIN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    pin: int
    tenant: str
    keyspace: bytes
    chunk: bytes
    counts: _containers.RepeatedScalarFieldContainer[int]
    bytes: int
    age_ms: int
    def __init__(self, pin: _Optional[int] = ..., tenant: _Optional[str] = ..., keyspace: _Optional[bytes] = ..., chunk: _Optional[bytes] = ..., counts: _Optional[_Iterable[int]] = ..., bytes: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class PinsReply(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[PinInfo]
    def __init__(self, pins: _Optional[_Iterable[_Union[PinInfo, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("sessions", "requests", "saved", "left_ms")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    requests: int
    saved: bool
    left_ms: int
    def __init__(self, sessions: _Optional[int] = ..., requests: _Optional[int] = ..., saved: bool = ..., left_ms: _Optional[int] = ...) -> None: ...
