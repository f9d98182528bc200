"""The codec's door: values to cells and back, in planes of falling significance; sizes; checksums.

Pure functions over batches of cells; no files, no threads. The form of a cell: `codec.layout`.
"""

from kvd.codec.backends import available, backend, use_backend
from kvd.codec.batch import (
    CellColumns,
    EncodedCells,
    check_cells,
    checksum_cells,
    decode_cells,
    encode_cells,
)
from kvd.codec.layout import (
    CODED_DTYPES,
    EXACT,
    PLANES,
    CellGeometry,
    CellSpec,
    Grouping,
    cell_bytes_max,
    cell_geometry,
)
from kvd.codec.profile import (
    PROFILE_DEFAULT,
    PROFILES,
    CodecProfile,
    GridSpecs,
    RoleCode,
    cell_specs,
    chunk_bytes_max,
    profile_by_id,
    strip_bytes_max,
)

__all__ = [
    "CODED_DTYPES",
    "EXACT",
    "PLANES",
    "PROFILES",
    "PROFILE_DEFAULT",
    "CellColumns",
    "CellGeometry",
    "CellSpec",
    "CodecProfile",
    "EncodedCells",
    "GridSpecs",
    "Grouping",
    "RoleCode",
    "available",
    "backend",
    "cell_bytes_max",
    "cell_geometry",
    "cell_specs",
    "check_cells",
    "checksum_cells",
    "chunk_bytes_max",
    "decode_cells",
    "encode_cells",
    "profile_by_id",
    "strip_bytes_max",
    "use_backend",
]
