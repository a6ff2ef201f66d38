"""Parquet and Arrow files: which groups of rows they have, and the rows of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamloader.convert.report import utf8_name
from streamloader.convert.sources.arrow_columns import ArrowColumn, columns_of, pyarrow
from streamloader.convert.sources.arrow_messages import NotArrowError, Span, schema_and_batches
from streamloader.convert.sources.places import Place, ReadRanges, SourceFile
from streamloader.convert.sources.range_file import RangeFile
from streamloader.errors import ConfigError

Described = tuple[tuple[ArrowColumn, ...], tuple[str, ...]]
"""Columns, and the class names of the label."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are read together: a row group of Parquet, a record batch of Arrow.

    Args:
        file: they are in.
        number: of the group in it.
        rows: how many.
        bytes: of its columns; unpacked in Parquet, as stored in Arrow.
        spans: of an Arrow file, what must be read for it.
    """

    file: SourceFile
    number: int
    rows: int
    bytes: int
    spans: tuple[Span, ...] = ()


class TableFiles(ABC):
    """Files of one kind in a place; several threads may read at once.

    Args:
        place: where they lie.
        read: reads ranges of it.
    """

    suffix: str

    def __init__(self, place: Place, read: ReadRanges) -> None:
        self._place = place
        self._read = read
        self._arrow = pyarrow()

    def scan(self, file: SourceFile) -> tuple[Described, list[RowGroup]]:
        """Return the columns and groups of a file.

        Raises:
            ConfigError: it cannot be read, or has a column that no field can hold.
            StorageError: the bucket failed.
        """
        try:
            return self._scan(file)
        except (OSError, self._arrow.ArrowException, NotArrowError, UnicodeDecodeError) as error:
            raise self._unreadable(file, error) from error

    def rows(self, group: RowGroup, columns: Sequence[str]) -> Any:
        """Return these columns of a group as an Arrow table.

        Every offset and text is checked: values of a damaged table would lie outside of its
        memory.

        Raises:
            ConfigError: it cannot be read, or is another than was listed.
            StorageError: the bucket failed.
        """
        try:
            table = self._rows(group, list(columns))
            table.validate(full=True)
        except (OSError, self._arrow.ArrowException, UnicodeDecodeError) as error:
            raise self._unreadable(group.file, error) from error
        if table.num_rows != group.rows:
            raise ConfigError(f"{utf8_name(group.file.path)} changed during the conversion")
        return table

    def _open(self, file: SourceFile) -> RangeFile:
        return RangeFile(self._read, self._place, file)

    @abstractmethod
    def _scan(self, file: SourceFile) -> tuple[Described, list[RowGroup]]: ...

    @abstractmethod
    def _rows(self, group: RowGroup, columns: list[str]) -> Any: ...

    def _unreadable(self, file: SourceFile, error: Exception) -> ConfigError:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return ConfigError(f"{utf8_name(file.path)} cannot be read as {self.suffix[1:]}: {reason}")


class ParquetFiles(TableFiles):
    """Parquet; the metadata at the end of each file is read once."""

    suffix = ".parquet"

    def __init__(self, place: Place, read: ReadRanges) -> None:
        super().__init__(place, read)
        self._metadata: dict[str, Any] = {}

    def _scan(self, file: SourceFile) -> tuple[Described, list[RowGroup]]:
        with self._parquet(file) as parquet:
            metadata = parquet.metadata
            parts = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
            return columns_of(parquet.schema_arrow), [
                RowGroup(file, n, part.num_rows, part.total_byte_size)
                for n, part in enumerate(parts)
            ]

    def _rows(self, group: RowGroup, columns: list[str]) -> Any:
        with self._parquet(group.file, self._metadata.get(group.file.path)) as parquet:
            self._metadata[group.file.path] = parquet.metadata
            return parquet.read_row_group(group.number, columns=columns, use_threads=False)

    def _parquet(self, file: SourceFile, metadata: Any = None) -> Any:
        # Buffered: the columns of a group lie side by side, and are read in few requests.
        opened = self._arrow.PythonFile(self._open(file), mode="r")
        return self._arrow.parquet.ParquetFile(opened, metadata=metadata, pre_buffer=True)


class ArrowFiles(TableFiles):
    """Arrow files, and streams as ``datasets`` writes them; of each batch its messages are read."""

    suffix = ".arrow"

    def _scan(self, file: SourceFile) -> tuple[Described, list[RowGroup]]:
        schema, batches = schema_and_batches(self._open(file).read_at, file.size)
        with self._stream(file, (schema,)) as stream:
            described = columns_of(stream.schema)
        return described, [
            RowGroup(file, n, batch.rows, batch.body_bytes, batch.spans)
            for n, batch in enumerate(batches)
        ]

    def _rows(self, group: RowGroup, columns: list[str]) -> Any:
        with self._stream(group.file, group.spans) as stream:
            return stream.read_all().select(columns)

    def _stream(self, file: SourceFile, spans: Sequence[Span]) -> Any:
        opened = self._open(file)
        messages = b"".join(opened.read_at(offset, length) for offset, length in spans)
        return self._arrow.ipc.open_stream(messages)


TABLE_KINDS: dict[str, type[TableFiles]] = {"parquet": ParquetFiles, "arrow": ArrowFiles}
