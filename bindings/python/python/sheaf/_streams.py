"""File objects over the parts of large values."""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from ._sheaf import RawReader, RawWriter


class ValueReader(io.RawIOBase):
    """Unbuffered binary file that reads a value as it was when the reader was opened."""

    def __init__(self, raw: RawReader) -> None:
        super().__init__()
        self._raw = raw
        self._position = 0

    def __len__(self) -> int:
        return len(self._raw)

    def __bool__(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readinto(self, buffer: Buffer, /) -> int:
        self._require_open()
        got = self._raw.read_into(self._position, buffer)
        self._position += got
        return got

    def readall(self) -> bytes:
        self._require_open()
        rest = self._raw.read_range(self._position, len(self._raw))
        self._position += len(rest)
        return rest

    def tell(self) -> int:
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._require_open()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._raw)}
        if whence not in bases:
            raise ValueError(f"invalid whence {whence}")
        target = bases[whence] + offset
        if target < 0:
            raise ValueError(f"negative seek position {target}")
        self._position = target
        return target

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if not self.closed:
            self._raw.close()
        super().close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._raw.__reduce__()


class ValueWriter(io.RawIOBase):
    """Binary file that writes a value, which ``commit`` or ``close`` inserts under its key.

    As a context manager it inserts the value at the end, and discards it after an exception. The
    value is also discarded if the writer is freed without a call of ``close``.
    """

    def __init__(self, raw: RawWriter, durability: Literal["buffer", "sync"] | None) -> None:
        super().__init__()
        self._raw = raw
        self._durability: Literal["buffer", "sync"] | None = durability
        self._is_ended = False

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        """Append all bytes of ``data``, and return their number."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._raw.write(data)

    def tell(self) -> int:
        return len(self._raw)

    def commit(self) -> None:
        """Insert the value under its key, and close the file."""
        if self._is_ended:
            raise ValueError("I/O operation on closed file")
        self._is_ended = True
        try:
            self._raw.commit(self._durability)
        finally:
            self._raw.discard()
            super().close()

    def discard(self) -> None:
        """Discard the bytes, and close the file. Does nothing after ``commit``."""
        self._is_ended = True
        self._raw.discard()
        super().close()

    def close(self) -> None:
        """Insert the value, unless it was inserted or discarded before."""
        if not self._is_ended:
            self.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # The constructor may have failed before `_raw` was set.
        if hasattr(self, "_raw"):
            self.discard()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._raw.__reduce__()
