"""Say what an evaluation will take, or sample it.

python -m rlvr.engines.pretrained estimate pipelines/scales/pretrained/evaluation.yaml
python -m rlvr.engines.pretrained sample pipelines/scales/pretrained/evaluation.yaml --out runs/try
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rlvr.engines.pretrained", description=__doc__.split("\n")[0]
    )
    parser.add_argument("action", choices=["estimate", "sample"])
    parser.add_argument("file", type=Path, help="an evaluation file")
    parser.add_argument("--out", type=Path, help="folder of the run; one that was killed goes on")
    args = parser.parse_args(argv)
    if args.action == "sample" and args.out is None:
        parser.error("sample needs --out")

    from rlvr.engines.pretrained import estimate, load, sample
    from rlvr.evaluation.files import load_problems, load_settings

    try:
        settings = load_settings(args.file)
        if settings.engine != "transformers":
            raise ValueError(f"engine={settings.engine!r} of {args.file}: allowed here is 'transformers'")
        problems, loaded = load_problems(settings), load(settings.model, name=settings.name)
        config, threads = settings.sampling_config, settings.threads
        print(estimate(loaded, problems, config, args.out, threads=threads), flush=True)
        if args.action == "sample":
            frame = sample(loaded, problems, config, args.out, threads=threads, announce=False)
            print(f"{len(frame)} responses, {frame['tokens'].sum()} tokens in {args.out}/samples.parquet")
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
