"""Tables of runs for other programs: CSV, JSON lines and pandas, in tidy (long) form.

Every field of a run that is a single value is a column of `runs` under its own name; fields of
groups are joined by a dot (`shares.compute`). Curves and staleness histograms have one row per
point, beginning with the columns that identify the run. `docs/results.md` lists the columns.

Nothing here knows the type of a run: fields that are added to it are exported without a change.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec

if TYPE_CHECKING:
    import pandas as pd

Table: TypeAlias = Literal["runs", "curves", "staleness"]
"""A table: one row per run, per point of a curve, or per staleness that occurred in a run."""

TABLES: Final[tuple[Table, ...]] = get_args(Table)

Row = dict[str, Any]

_KEYS: Final = ("strategy", "kind", "workers", "repeat", "seed", "swept")
"""The fields that identify a run, and the values of swept options."""
_CURVES: Final = frozenset(("validation", "loss", "measures", "throughput", "bytes_sent"))
"""Fields with curves, which are in a table of their own; so are histograms."""
_HISTOGRAM: Final = "histogram"


def rows(runs: Iterable[Any], table: Table) -> list[Row]:
    """The rows of a table.

    Args:
        runs: entries of `Comparison.runs`.
        table: which table.

    Raises:
        ValueError: there is no such table.
    """
    makers = {"runs": _run, "curves": _points, "staleness": _staleness}
    if table not in makers:
        raise ValueError(f"there is no table {table!r}: use {', '.join(map(repr, TABLES))}")
    return [row for run in runs for row in makers[table](run)]


def columns(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of all rows; those of the row that has most come first."""
    widest = max(found, key=len, default={})
    return [*dict.fromkeys([*widest, *(name for row in found for name in row)])]


def write_csv(found: Sequence[Row], path: Path | str) -> Path:
    """Write rows as CSV with a header line; what was not measured is empty."""
    text = io.StringIO(newline="")
    names = columns(found)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in found)
    return _write(path, text.getvalue().encode("utf-8"))


def write_jsonl(found: Sequence[Row], path: Path | str) -> Path:
    """Write rows as JSON lines: one object per line; what was not measured is null."""
    names = columns(found)
    lines = [msgspec.json.encode({name: row.get(name) for name in names}) for row in found]
    return _write(path, b"".join(line + b"\n" for line in lines))


def frame(found: Sequence[Row]) -> "pd.DataFrame":
    """The rows as a pandas data frame; what was not measured is NaN or None.

    Raises:
        ModuleNotFoundError: pandas is not installed.
    """
    try:
        import pandas  # noqa: ICN001, PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "data frames need pandas, which is not installed: pip install 'manyhands[pandas]'. "
            "to_csv and to_jsonl need no other package"
        ) from error
    names = columns(found)
    return pandas.DataFrame({name: [row.get(name) for row in found] for name in names})


def _run(run: Any) -> Iterator[Row]:
    row: Row = {}
    for name, kind in _fields(type(run)):
        if name not in _CURVES:
            row |= _flat(name, getattr(run, name), kind)
    # A run outside a comparison has an absolute path, which is not published.
    row["folder"] = Path(run.folder).name if Path(run.folder).is_absolute() else run.folder
    for metric, curve in run.validation.items():
        row[f"final.{metric}"] = curve.value[-1] if curve.value else None
    yield row


def _flat(name: str, value: Any, kind: Any) -> Row:
    """The columns of a field: itself, or those of its parts."""
    if isinstance(value, Mapping):
        flat: Row = {}
        for key, held in value.items():
            flat |= _flat(f"{name}.{key}", held, type(held))
        return flat
    nested = next(filter(_is_struct, (kind, *get_args(kind))), None)
    if nested is not None:
        parts = ((f"{name}.{part}", part, of) for part, of in _fields(nested) if part != _HISTOGRAM)
        found: Row = {}
        for full, part, of in parts:
            found |= _flat(full, None if value is None else getattr(value, part), of)
        return found
    if isinstance(value, tuple):
        return {f"{name}.{number}": held for number, held in enumerate(value)}
    return {name: value}


def _points(run: Any) -> Iterator[Row]:
    named = [("validation", metric, curve) for metric, curve in run.validation.items()]
    named += [("measures", name, curve) for name, curve in run.measures.items()]
    named.append(("training", "loss", run.loss))
    named += [("run", name, getattr(run, name)) for name in ("throughput", "bytes_sent")]
    for split, metric, curve in named:
        for seconds, samples, value in zip(curve.seconds, curve.samples, curve.value, strict=True):
            yield _keys(run) | {
                "split": split,
                "metric": metric,
                "seconds": seconds,
                "samples": samples,
                "value": value,
            }


def _staleness(run: Any) -> Iterator[Row]:
    if run.staleness is not None:
        for versions, updates in sorted(run.staleness.histogram.items()):
            yield _keys(run) | {"versions": versions, "updates": updates}


def _keys(run: Any) -> Row:
    found: Row = {}
    for name, kind in _fields(type(run)):
        if name in _KEYS:
            found |= _flat(name, getattr(run, name), kind)
    return found


def _fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    return ((field.name, field.type) for field in msgspec.structs.fields(kind))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _cell(value: Any) -> str:
    # All digits of a float, so that it is read back to the bit.
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _write(path: Path | str, content: bytes) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(content)
    return partial.replace(path)
