"""``streamloader inspect``: what a data set holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamloader.cli._options import output_options, storage_options
from streamloader.cli._output import Output, printable
from streamloader.errors import ConfigError
from streamloader.sizes import format_size

if TYPE_CHECKING:
    from streamloader.convert import Description, StoredSample

_CLASSES_SHOWN = 10


@click.command()
@click.argument("dataset", metavar="DATASET")
@click.option("--split", help="Split that --sample and --sheet look into.")
@click.option("--sample", "number", type=int, metavar="N", help="Show sample N.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --sample: a folder to write the sample's fields into.",
)
@click.option(
    "--sheet",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PNG",
    help="Draw a contact sheet of samples.",
)
@click.option(
    "--sheet-count",
    type=click.IntRange(1, 400),
    default=36,
    show_default=True,
    help="Pictures on the sheet.",
)
@storage_options
@output_options
def command(
    dataset: str,
    split: str | None,
    number: int | None,
    out: Path | None,
    sheet: Path | None,
    sheet_count: int,
    storage_options: dict[str, Any],
    output: Output,
) -> None:
    """Show what DATASET holds: fields, counts, sizes, class balance."""
    from streamloader.convert import describe, read_samples

    if out is not None and number is None:
        raise click.UsageError("--out needs --sample")
    description = describe(dataset, storage_options=storage_options)
    values = description.to_json()
    lines = list(_lines(description))
    if number is not None:
        (sample,) = read_samples(dataset, [number], split=split, storage_options=storage_options)
        values["sample"] = _sample_values(sample)
        lines += _sample_lines(sample)
        if out is not None:
            values["sample"]["files"] = [str(path) for path in _write_fields(sample, out)]
    if sheet is not None:
        _draw(description, dataset, split, sheet, sheet_count, storage_options)
        values["sheet"] = str(sheet)
        lines.append(f"sheet: {sheet}")
    output.result(values, lines)


def _lines(description: Description) -> Iterator[str]:
    manifest = description.manifest
    values = description.to_json()
    yield (
        f"{description.url}: {manifest.num_samples:,} samples in {values['shards']:,} shards,"
        f" {format_size(values['bytes'])}"
    )
    yield f"fields: {', '.join(_field_text(field) for field in values['fields'])}"
    for name, sizes in description.picture_sizes.items():
        width, height = ("/".join(map(str, side)) for side in (sizes.width, sizes.height))
        yield f"{name}: width {width}, height {height} pixels (smallest/median/largest)"
    for split, samples in values["splits"].items():
        yield f"split {split}: {samples:,} samples"
    yield from _class_lines(description)
    yield (
        f"blocks: {manifest.block_samples:,} samples, the largest"
        f" {format_size(manifest.max_block_bytes)}"
    )
    yield f"fingerprint: {manifest.fingerprint}"


def _field_text(field: dict[str, Any]) -> str:
    shape = f"[{','.join(map(str, field['shape']))}]" if field["shape"] else ""
    codec = "" if field["codec"] == "none" else f", {field['codec']}"
    return f"{field['name']} ({field['type']}{shape}{codec})"


def _class_lines(description: Description) -> Iterator[str]:
    classes, counts = description.manifest.classes, description.class_counts
    if not classes:
        return
    if counts is None:
        yield f"classes: {len(classes):,}"
        return
    yield (
        f"classes: {len(classes):,}, of {counts.min():,} to {counts.max():,} samples each"
        f" (mean {counts.mean():,.1f})"
    )
    for label, (name, count) in enumerate(zip(classes, counts.tolist(), strict=True)):
        if label == _CLASSES_SHOWN:
            yield f"  and {len(classes) - _CLASSES_SHOWN:,} more"
            return
        yield f"  {label} {printable(name)}: {count:,}"


def _sample_lines(sample: StoredSample) -> Iterator[str]:
    key = "no key" if sample.key is None else printable(sample.key)
    yield f"sample {sample.number}: {key}, in {sample.shard} at byte {sample.offset}"
    for name, value in _sample_values(sample)["fields"].items():
        yield f"  {name}: {printable(str(value))}"


def _sample_values(sample: StoredSample) -> dict[str, Any]:
    return {
        "number": sample.number,
        "key": sample.key,
        "shard": sample.shard,
        "offset": sample.offset,
        "class": sample.class_name,
        "fields": {name: _field_value(value) for name, value in sample.record.items()},
    }


def _field_value(value: Any) -> Any:
    """Return a JSON value: arrays as lists, bytes by their length and what they are."""
    from streamloader.dts import PictureHeaderError, read_picture_header

    if not isinstance(value, bytes | bytearray | memoryview):
        return value.tolist() if hasattr(value, "tolist") else value
    try:
        header = read_picture_header(value)
    except PictureHeaderError:
        return {"bytes": len(value)}
    return {
        "bytes": len(value),
        "format": header.format,
        "width": header.width,
        "height": header.height,
    }


def _write_fields(sample: StoredSample, folder: Path) -> Iterator[Path]:
    """Write each field of a sample into a file of its own: bytes as they are, the rest as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in sample.record.items():
        described = _field_value(value)
        if isinstance(value, bytes | bytearray | memoryview):
            extension = described.get("format", "bin").replace("jpeg", "jpg")
            path = folder / f"{sample.number}.{name}.{extension}"
            path.write_bytes(value)
        else:
            path = folder / f"{sample.number}.{name}.json"
            path.write_text(json.dumps(described) + "\n", encoding="utf-8")
        yield path


def _draw(
    description: Description,
    dataset: str,
    split: str | None,
    path: Path,
    count: int,
    storage: dict[str, Any],
) -> None:
    from streamloader.convert import draw_sheet, spread_samples

    pictures = list(description.picture_sizes)
    if not pictures:
        raise ConfigError(f"{description.url} has no picture field to draw a sheet of")
    samples = spread_samples(dataset, count, split=split, storage_options=storage)
    draw_sheet(samples, pictures[0]).save(path, format="PNG")
