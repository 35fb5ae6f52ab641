"""Downloading benchmarks, once and completely.

``datasets`` does the network part (its cache resumes a broken download); what lands in the target folder is
``<name>.jsonl.gz`` with ``<name>.json`` beside it, which says where it came from and its sha256. Both are
written after the number of problems was found right, so a set is complete and verified, or absent.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlvr.problems.benchmarks.catalogue import Benchmark, get_benchmark, load_catalogue
from rlvr.problems.benchmarks.converters import convert
from rlvr.problems.benchmarks.records import BadRecord, content_sha256, to_problem, write_records
from rlvr.problems.benchmarks.sources import VARIABLE, fetched_dir, ignore_in_git
from rlvr.storage import read_json, write_json

LARGE_MB = 500  # `all` leaves larger ones out; they are fetched by name
_NETWORK = ("httpx", "requests", "urllib3", "socket", "aiohttp", "fsspec", "huggingface_hub")


class FetchError(RuntimeError):
    """A benchmark could not be fetched; the message says why and what to do."""


class Unreachable(FetchError):
    """The hub does not answer: the other sets will not come either."""


def fetch(
    names: Sequence[str],
    to: str | Path | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> list[Path]:
    """Download benchmarks that are not yet there, complete and verified; ``["all"]`` is every one.

    Args:
        names: names of the catalogue; "all" leaves out what is larger than ``LARGE_MB``.
        to: target folder, None for ``data/benchmarks``; set ``RLVR_DATA`` to it to read from there.
        force: download again what is there.
        say: where progress goes, line by line.

    Returns:
        The files, in order.

    Raises:
        ValueError: unknown name.
        FetchError: names the set and the cause; sets before it are complete, this one is absent.
    """
    benchmarks = _chosen(names, say)
    folder = Path(to) if to is not None else fetched_dir()
    waiting = [b for b in benchmarks if force or state_of(b, folder) != "complete"]
    for benchmark in benchmarks:
        if benchmark not in waiting:
            say(f"{benchmark.name}: complete and verified, skipped")
    if waiting:
        datasets = _import_datasets()
        say(f"to download: {_size(waiting)}; to {folder}")
        (ignore_in_git if to is None else lambda path: path.mkdir(parents=True, exist_ok=True))(folder)
    for benchmark in waiting:
        _fetch_one(benchmark, folder, datasets, say)
    if to is not None and waiting:
        say(f"to read from there: export {VARIABLE}={folder}")
    return [folder / f"{benchmark.name}.jsonl.gz" for benchmark in benchmarks]


def state_of(benchmark: Benchmark, folder: Path) -> str:
    """Of a fetched set: ``absent``, ``complete`` (its sha256 is the recorded one), ``changed`` or
    ``outdated`` (the catalogue names another source by now)."""
    path = folder / f"{benchmark.name}.jsonl.gz"
    if not path.exists():
        return "absent"
    try:
        known = read_json(folder / f"{benchmark.name}.json")
        if known["source"] != _source(benchmark):
            return "outdated"
        return "complete" if known["sha256"] == content_sha256(path) else "changed"
    except (OSError, ValueError, KeyError, TypeError):
        return "changed"


def _chosen(names: Sequence[str], say: Callable[[str], None]) -> list[Benchmark]:
    if isinstance(names, str):
        raise ValueError(f"names={names!r}: allowed is a list of names")
    if "all" not in names:
        return [get_benchmark(name) for name in dict.fromkeys(names)]
    everything = load_catalogue().values()
    named = [get_benchmark(name).name for name in names if name != "all"]
    large = [b.name for b in everything if b.source.download_mb > LARGE_MB and b.name not in named]
    if large:
        say(f"not in `all`, since larger than {LARGE_MB} MB; fetch by name: {', '.join(large)}")
    return [b for b in everything if b.name not in large]


def _size(benchmarks: Sequence[Benchmark]) -> str:
    megabytes = sum(b.source.download_mb for b in benchmarks)
    minutes = megabytes / 10 / 60
    time = f"{minutes:.0f} min" if minutes >= 1 else "under a minute"
    return f"{len(benchmarks)} set{'s' * (len(benchmarks) > 1)}, about {megabytes:.3g} MB ({time} at 10 MB/s)"


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise FetchError(
            "downloading needs the package `datasets`: pip install -e '.[evaluation]' or pip install datasets"
        ) from None
    return datasets


def _source(benchmark: Benchmark) -> dict[str, Any]:
    return benchmark.source.model_dump(mode="json", exclude={"download_mb", "revision_from"})


def _fetch_one(benchmark: Benchmark, folder: Path, datasets: Any, say: Callable[[str], None]) -> None:
    name, source = benchmark.name, benchmark.source
    revision = f" at {source.revision[:10]}" if source.revision else ""
    say(f"{name}: {benchmark.fetched_count} problems from {source.where}{revision}")
    rows = _rows(benchmark, datasets)
    records = _checked(convert(_progress(rows, benchmark), benchmark), benchmark)
    path = folder / f"{name}.jsonl.gz"
    # without its record a file does not count as complete
    (folder / f"{name}.json").unlink(missing_ok=True)
    try:
        count, digest = write_records(path, records)
    except FetchError:
        raise
    except (ValueError, TypeError) as error:  # TypeError: a value that JSON does not know
        raise FetchError(f"{name}: {error}") from None
    except OSError as error:
        raise FetchError(f"{name}: {path} cannot be written: {error}") from None
    write_json(folder / f"{name}.json", {"count": count, "sha256": digest, "source": _source(benchmark)})
    say(f"{name}: {count} problems, complete")


def _checked(records: Iterator[dict], benchmark: Benchmark) -> Iterator[dict]:
    """Records that can be loaded; an error at the end if their number is not the expected one."""
    count = 0
    for count, record in enumerate(records, start=1):  # noqa: B007
        try:
            to_problem(record, benchmark)
        except BadRecord as error:
            raise ValueError(f"problem {record['id']}: {error}") from None
        yield record
    if count != benchmark.fetched_count:
        raise ValueError(
            f"{count} problems came, {benchmark.fetched_count} were expected: nothing was written. The "
            "published copy has changed: pin `revision`, or correct `count`, in data/benchmarks.yaml"
        )


def _rows(benchmark: Benchmark, datasets: Any) -> Iterator[dict]:
    """Published rows, whichever way they are stored; errors of the network as :class:`FetchError`."""
    source = benchmark.source
    try:
        if source.files:
            base = f"hf://datasets/{source.hub}@{source.revision or 'main'}/" if source.hub else ""
            for name in source.files:
                yield from _lines(Path(datasets.DownloadManager().download(base + name)))
            return
        for split in source.splits:
            arguments = {"revision": source.revision} if source.revision else {}
            for row in datasets.load_dataset(source.hub, source.config, split=split, **arguments):
                yield row | {"split": split} if len(source.splits) > 1 else row
    except (GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:
        raise _explain(error, benchmark) from error


def _lines(path: Path) -> Iterator[dict]:
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with (gzip.open if packed else open)(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _explain(error: Exception, benchmark: Benchmark) -> FetchError:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    network = any(
        isinstance(part, (ConnectionError, TimeoutError)) or type(part).__module__.startswith(_NETWORK)
        for part in chain
    )
    offline = [name for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE") if os.environ.get(name)]
    name, where = benchmark.name, benchmark.source.where
    if network or isinstance(error, FileNotFoundError):
        hint = f"{' and '.join(offline)} set: unset to download. " if offline else ""
        kind = Unreachable if network else FetchError
        return kind(
            f"{name}: {where} cannot be reached, or is not there ({text}). {hint}For a machine without "
            f"network, run `rlvr data fetch {name} --to DIR` on one that has it, copy DIR, and set "
            f"{VARIABLE}=DIR. Sets that are complete stay; the same command goes on from here."
        )
    return FetchError(f"{name}: {where} could not be loaded: {type(error).__name__}: {text}")


def _progress(rows: Iterator[dict], benchmark: Benchmark) -> Iterator[dict]:
    from tqdm import tqdm

    total = benchmark.source.rows or benchmark.fetched_count
    return tqdm(rows, desc=benchmark.name, total=total, unit=" rows", leave=False, disable=None)
