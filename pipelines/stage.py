"""Run one notebook as a stage of the pipeline.

    python -m pipelines.stage notebooks/03_train.ipynb --out runs/laptop/train/nfpo \\
        -p params_file params.yaml -p arm nfpo --dep runs/laptop/base --expect metrics.parquet

Exit codes: 0 the output folder is complete and in place; 1 the notebook failed, or another runner makes the
same output; 2 the request is wrong and nothing was run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipelines.processes import Busy, die_with_dvc

#: Optional for who imports them: jsonschema's grammars of international addresses and of durations, and
#: papermill's notebooks on Hadoop, which load pyarrow and numpy.
UNNEEDED = ("rfc3987_syntax", "isoduration", "pyarrow.fs")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Arguments, with ``parameters`` as (name, value) pairs.

    ``-p`` takes the two words after it as they are, also ``-1e-6``, which argparse would take for an option.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.stage",
        description=__doc__.split("\n")[0],
        epilog="exit codes: 0 complete, 1 failed, 2 wrong request",
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument(
        "--out", type=Path, required=True, help="output folder, replaced as a whole on success"
    )
    parser.add_argument("-p", "--param", nargs=2, metavar=("NAME", "VALUE"), help="a parameter; repeatable")
    parser.add_argument("--dep", type=Path, action="append", default=[], help="an input; repeatable")
    parser.add_argument(
        "--expect", action="append", default=[], help="a file that must be in OUT; repeatable"
    )
    rest, pairs, words = [], [], iter(argv)
    for word in words:
        if word not in ("-p", "--param"):
            rest.append(word)
            continue
        pair = (next(words, None), next(words, None))
        if None in pair:
            parser.error(f"{word} needs a name and a value")
        pairs.append(pair)
    args = parser.parse_args(rest)
    args.parameters = pairs
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    die_with_dvc()
    # Imported after the guard is up: Jupyter's packages take half a second to load. What they would load for
    # no notebook of ours takes a second more.
    for name in UNNEEDED:
        sys.modules.setdefault(name, None)
    from pipelines.execute import StageFailed, execute
    from pipelines.request import BadInput, Request

    request = Request(args.notebook, args.out, args.parameters, args.dep, args.expect)
    try:
        execute(request)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (StageFailed, Busy) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the unfinished work", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
