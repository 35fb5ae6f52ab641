"""Sample from the command line.

    python -m rlvr.engines.vllm MODEL PROBLEMS OUT max_tokens=8192 samples=32 temperature=0.6

PROBLEMS is a benchmark (`rlvr data list`) or a file with one JSON object per line (id, prompt). Words are
fields of :class:`SamplingConfig`; ``--config`` reads more of them from a YAML file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rlvr.engines.config import SamplingConfig
from rlvr.engines.vllm.sampling import sample


def read_problems(source: str) -> list[Any]:
    """Problems of a .jsonl file, or of the benchmark of that name."""
    path = Path(source)
    if path.suffix != ".jsonl" and not path.exists():
        from rlvr.problems.benchmarks import load_benchmark

        return load_benchmark(source)
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            problems.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number} is no JSON: {error}") from None
    return problems


def read_config(path: str | None, words: list[str]) -> SamplingConfig:
    """The fields of a YAML file, overridden by ``name=value`` words (values are read as YAML)."""
    yaml = YAML(typ="safe", pure=True)
    values: dict[str, Any] = {}
    try:
        if path is not None:
            loaded = yaml.load(Path(path).read_text(encoding="utf-8"))
            if not isinstance(loaded, dict):
                raise ValueError(f"config={path!r} holds no mapping of names to values")
            values |= loaded
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise ValueError(f"{word!r}: allowed are words of the form NAME=VALUE")
            values[name] = yaml.load(value)
    except YAMLError as error:
        raise ValueError(f"no YAML: {error}") from None
    return SamplingConfig.from_dict(values)


def main(arguments: list[str] | None = None) -> int:
    """Sample; 0 if the run is complete, 2 if something is refused (stderr says what)."""
    parser = argparse.ArgumentParser(
        prog="python -m rlvr.engines.vllm", description="Sample responses with vLLM; a killed run goes on."
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a saved model with its tokenizer")
    parser.add_argument("problems", metavar="PROBLEMS", help="a benchmark, or a .jsonl file (id, prompt)")
    parser.add_argument("out", metavar="OUT", help="folder of the run")
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="max_tokens=8192 samples=32 ...")
    parser.add_argument("--config", metavar="FILE", help="YAML file with fields of SamplingConfig")
    parser.add_argument("--name", help="what column `model` says (default: the folder's name)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    try:
        config = read_config(options.config, options.words)
        problems = read_problems(options.problems)
        frame = sample(
            options.model, problems, config, options.out, name=options.name, progress=not options.quiet
        )
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"rlvr.engines.vllm: {error}", file=sys.stderr)
        return 2
    print(
        f"{options.out}/samples.parquet: {len(frame)} responses to {frame['problem'].nunique()} problems, "
        f"{frame['finished'].mean():.1%} finished, {int(frame['tokens'].sum())} tokens"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
