"""Write a report into a folder: JSON, Markdown, pictures, and one HTML page that holds everything."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.markdown import to_markdown
from bounded_retrieval.evaluation.plots import KINDS, PICTURES, captions, check_matplotlib, render_plots
from bounded_retrieval.evaluation.presentation import Report
from bounded_retrieval.evaluation.writing import check_folder, write_bytes

PLOTS_FOLDER = "plots"

_TIMINGS = "timings.json"


def check_plots() -> None:
    """Make sure that the pictures of a report can be drawn, before an experiment is run for it.

    Raises:
        ConfigurationError: matplotlib is not installed; names the extra.
    """
    check_matplotlib()


def check_report_folder(folder: str | Path, *, plots: bool) -> None:
    """Make sure that a report can be written, before an experiment is run for it; creates nothing.

    Raises:
        ConfigurationError: matplotlib is needed and not installed; names the extra.
        SourceError: the folder, or that of its pictures, is a file or cannot be written to.
    """
    if plots:
        check_plots()
    check_folder(folder)
    if plots:
        check_folder(Path(folder) / PLOTS_FOLDER)


def write_report(
    report: Report, folder: str | Path, *, timings: Mapping[str, Any] | None = None, plots: bool = True
) -> list[Path]:
    """Write ``report.json``, ``timings.json``, ``report.md``, ``plots/*.png`` and ``*.svg``, and ``report.html``.

    Everything is made before the first file is written. The same report gives the same bytes; only what comes from
    ``timings`` differs between two runs of an experiment. Files of these names that an earlier report left and this one
    lacks are removed; everything else in the folder is left alone.

    Args:
        report: what `summarise` returned, or the same read back from its JSON.
        folder: where to; created if need be.
        timings: what `bounded_retrieval.evaluation.summary.timings` returned; none writes no ``timings.json``.
        plots: whether to draw the pictures, which needs matplotlib.

    Returns:
        The files written.

    Raises:
        RequestError: the report is of another format, or holds a value that JSON has no form for; names its place.
        ConfigurationError: matplotlib is needed and not installed.
        SourceError: the folder is a file or cannot be written to.
    """
    from bounded_retrieval.evaluation.page import page

    here = Path(folder)
    check_folder(here)
    files = {"report.json": _json(report, "report")}
    if timings is not None:
        files[_TIMINGS] = _json(timings, "timings")
    pictures = render_plots(report) if plots else {}
    words = captions()
    paths = {words[name]: f"{PLOTS_FOLDER}/{name}.png" for name in pictures}
    files["report.md"] = _encoded(to_markdown(report, timings, paths))
    drawings = {words[name]: each["svg"].decode() for name, each in pictures.items()}
    last = {"report.html": _encoded(page(report, pictures=drawings))}
    drawn = {f"{name}.{kind}": content for name, each in pictures.items() for kind, content in each.items()}
    written = write_bytes(here, files)
    if drawn:
        written += write_bytes(here / PLOTS_FOLDER, drawn)
    written += write_bytes(here, last)
    _remove_former(here, set(written))
    return written


def _json(value: Mapping[str, Any], where: str) -> bytes:
    place = next(_without_json(value, where), None)
    if place is not None:
        raise RequestError(place)
    # A lone surrogate has no UTF-8; as JSON's escape for it, the text stays what it was.
    return f"{json.dumps(value, ensure_ascii=False, indent=2)}\n".encode("utf-8", "backslashreplace")


def _without_json(value: Any, where: str) -> Iterator[str]:
    """What is wrong with each value that JSON has no form for, and where it is."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _without_json(each, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from _without_json(each, f"{where}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: must be finite (got {value})"
    elif not isinstance(value, str | int | float | None):
        yield f"{where}: JSON has no form for it (got {type(value).__name__})"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _remove_former(folder: Path, written: set[Path]) -> None:
    own = [folder / _TIMINGS, *(folder / PLOTS_FOLDER / f"{name}.{kind}" for name in PICTURES for kind in KINDS)]
    for path in own:
        if path not in written and path.is_file():
            try:
                path.unlink()
            except OSError as error:
                raise SourceError(f"{path}: cannot be removed ({error.strerror or type(error).__name__})") from None
    # Only an empty folder can be removed: whatever else is in it stays.
    with contextlib.suppress(OSError):
        (folder / PLOTS_FOLDER).rmdir()
