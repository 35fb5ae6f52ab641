"""What the benches of verdicts and programs share: turns, warm-up, and the ratio of pairs."""

import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def paired():
    spec = importlib.util.spec_from_file_location("paired", BENCH / "paired.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sides_take_turns_and_the_warm_up_does_not_count(paired, monkeypatch):
    order, now = [], [0.0]

    def side(name, seconds):
        def call():
            order.append(name)
            now[0] += seconds

        return call

    monkeypatch.setattr(paired.time, "perf_counter", lambda: now[0])
    times = paired.in_turn({"ours": side("ours", 1), "theirs": side("theirs", 3)}, 3, warm_up=1)
    first = order[::2]
    assert len(order) == 8 and first.count("ours") == first.count("theirs") == 2
    assert all({a, b} == {"ours", "theirs"} for a, b in zip(order[::2], order[1::2], strict=True))
    assert times["wall"] == {"ours": [1, 1, 1], "theirs": [3, 3, 3]}
    assert all(len(x) == 3 and min(x) >= 0 for x in times["processor"].values())


def test_the_ratio_is_of_pairs(paired, capsys):
    paired.report("x", 100, "verdicts/s", {"ours": [1, 2, 4], "theirs": [2, 6, 8]})
    line = capsys.readouterr().out
    assert line == "x: ours 50 verdicts/s, theirs 17, ratio 2.00 [2.00, 3.00], 3 pairs\n"


def test_whole_processes(paired, tmp_path):
    script = tmp_path / "once.py"
    script.write_text("import sys; print(sys.argv); sys.exit(sys.argv[1:] != ['--once', 'ours', 'a'])")
    paired.new_process(str(script), "ours", ["a"])()
    with pytest.raises(paired.subprocess.CalledProcessError):
        paired.new_process(str(script), "theirs", ["a"])()
