"""Read the members of a zip file by name, without ever writing one to disk.

Logs of inspect_ai (`.eval`) are zip files, compressed with Zstandard, which `zipfile` reads from
Python 3.14 on; before that their bytes are decompressed by PyArrow.
"""

from __future__ import annotations

import zlib
from io import BytesIO
from struct import Struct
from struct import error as StructError
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, LargeZipFile, ZipFile, ZipInfo

import pyarrow as pa

from raybias import memory_limits
from raybias.errors import DataError, said_by

#: The number of Zstandard among a zip file's compression methods (APPNOTE.TXT 4.4.5).
_ZSTANDARD: Final = 93
#: Header of a member: its end has the lengths of the name and of the extra field behind it.
_MEMBER: Final = Struct("<26xHH")
_ENCRYPTED: Final = 0x1
#: What decompressors raise of damaged bytes.
_DAMAGED: Final = (
    *(BadZipFile, NotImplementedError, RuntimeError, StructError, ValueError, OSError),
    *(EOFError, zlib.error),
)
_CURE: Final = "copy it again, or convert it with `inspect log convert LOG --to json`"


class Archive:
    """A zip file in memory; all its members together unpack to at most `MOST_UNPACKED` bytes.

    data: bytes of the file.
    where: the file's path or URI, for messages.

    Raises
    ------
    DataError: it is no whole zip file, or unpacks to too much.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        self._data = data
        self._unpacked_bytes = 0
        try:
            with ZipFile(BytesIO(data)) as file:
                # Of members of one name the last counts: a retried sample is appended.
                self._members = {info.filename: info for info in file.infolist()}
        except (BadZipFile, LargeZipFile, ValueError, NotImplementedError, OSError) as error:
            raise DataError(
                f"is not a whole zip file ({said_by(error)})", where=where, cure=_CURE
            ) from error
        memory_limits.check_unpacked(sum(info.file_size for info in self._members.values()), where)

    @property
    def names(self) -> list[str]:
        """Names of the members, in the order of the file."""
        return list(self._members)

    def read(self, name: str) -> bytes:
        """Unpack one member; `DataError` for a damaged one, or one that is larger than it says."""
        info = self._members[name]
        where = f"{self.where}, {name}"
        try:
            content = self._unpack(info)
        except _DAMAGED as error:
            raise DataError(
                f"cannot be unpacked ({said_by(error)})", where=where, cure=_CURE
            ) from error
        self._unpacked_bytes += len(content)
        memory_limits.check_unpacked(self._unpacked_bytes, self.where)
        return content

    def _unpack(self, info: ZipInfo) -> bytes:
        if info.flag_bits & _ENCRYPTED:
            raise BadZipFile("it is encrypted")
        # A byte more than is allowed shows that there are more.
        limit = memory_limits.MOST_UNPACKED + 1
        if info.compress_type != _ZSTANDARD:
            if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                raise BadZipFile(f"compression method {info.compress_type}")
            with ZipFile(BytesIO(self._data)) as file, file.open(info) as stream:
                return stream.read(limit)
        name_bytes, extra_bytes = _MEMBER.unpack_from(self._data, info.header_offset)
        start = info.header_offset + _MEMBER.size + name_bytes + extra_bytes
        packed = pa.BufferReader(self._data[start : start + info.compress_size])
        with pa.CompressedInputStream(packed, "zstd") as stream:
            content = bytes(stream.read(limit))
        if zlib.crc32(content) != info.CRC:
            raise BadZipFile("its checksum is wrong")
        return content
