"""Overlaps are those a slow loop finds, results are kept only as long as the texts are the same."""

import itertools
import random
from dataclasses import replace

import pytest

from rlvr.problems.benchmarks import (
    BenchmarkProblem,
    Overlap,
    contamination,
    contamination_note,
    decontaminate,
    duplicate_groups,
    find_overlaps,
    normalise,
    overlap,
)
from rlvr.problems.benchmarks.duplicates import words

LONG = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi"  # 16 words, 4 runs
)


def problems(*texts, benchmark="b", prefix="p"):
    return [BenchmarkProblem(f"{prefix}{k}", benchmark, text, "1") for k, text in enumerate(texts)]


# --- normalised text ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Find $x$.", "find x"),
        (r"What is \(\dfrac{1}{2}\)?", r"what is $\frac12$"),
        (r"$1,\!000$ and $ab$", "$1,000$ and $a b$"),
        (r"\[x = 1\]", "$$x=1$$"),
        (r"\left( a \right)", "(a)"),
        (r"$5\ \text{cm}$", "5 cm"),
        (r"$\mathrm{ABC}$ is", "ABC is"),
        ("in the form \x0crac{m}{n}", r"in the form \frac{m}{n}"),
        ("**Bold** words", "bold words"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("How many? ", "How many"),
        ("Line\none", "line one"),
        (r"is $\qquad$.", "is $ $"),
        ("a \\\\  \n b", "a \\\\\nb"),
        (r"a \\[b]", r"a\\ [ b ]"),
    ],
)
def test_the_same_problem(one, other):
    assert normalise(one) == normalise(other)
    assert len(duplicate_groups(problems(one, other, "something else"))) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("$x = 1$", "$x = -1$"),
        ("$x < 2$", "$x > 2$"),
        ("$2+3$", "$2 \\cdot 3$"),
        ("$2^3$", "$23$"),
        (r"$\sqrt{2}$", "$2$"),
        (r"$\frac{1}{2}$", r"$\binom{1}{2}$"),
        (r"$\cos x$", r"$\sin x$"),
        ("1.5", "15"),
        ("x!", "x! + 1"),
        ("求 x", "求 y"),
    ],
)
def test_different_problems(one, other):
    assert normalise(one) != normalise(other)
    assert duplicate_groups(problems(one, other)) == []


def test_words_are_latin_letters_and_digits():
    assert words(r"If $x_1+y=\frac{2}{3}$, Find X!") == ["if", "x", "1", "y", "frac", "2", "3", "find", "x"]
    assert words("求 abc 的值") == ["abc"]


# --- pairs -------------------------------------------------------------------------------------------


def test_shares_typed_in():
    # runs of 13 words: 4 in the whole text, 1 in its first 13 words, 2 in its first 14, none in 12
    whole, *parts = LONG.split()
    words_of = [whole, *parts]
    train = problems(*(" ".join(words_of[:k]) for k in (12, 13, 14, 15)), "unlike", benchmark="t", prefix="t")
    evaluation = problems(LONG, "unlike!", "short and new")
    found = find_overlaps(train, evaluation)
    assert found == [Overlap("p0", "t3", "near", 0.75, "t"), Overlap("p1", "t4", "exact", 1.0, "t")]
    assert find_overlaps(train[:3], evaluation) == [Overlap("p0", "t2", "near", 0.5, "t")]
    assert find_overlaps(train[:2], evaluation) == []
    kept, removed = decontaminate(train, evaluation)
    assert [p.id for p in kept] == ["t0", "t1"] and [p.id for p in removed] == ["t2", "t3", "t4"]


def test_exact_comes_before_near_and_the_first_before_the_rest():
    train = problems(LONG + " and more", f"{LONG}.", LONG, prefix="t")
    assert find_overlaps(train, problems(LONG)) == [Overlap("p0", "t1", "exact", 1.0, "b")]
    train = problems(LONG + " and more", LONG + " with more", prefix="t")
    assert find_overlaps(train, problems(LONG)) == [Overlap("p0", "t0", "near", 1.0, "b")]


def test_only_the_longer_train_text_counts_not_the_longer_test():
    assert find_overlaps(problems(LONG), problems(LONG + " " + LONG.upper() * 3)) == []
    assert len(find_overlaps(problems(LONG + " " + LONG * 3), problems(LONG))) == 1


def slow_share(train: str, evaluation: str) -> float:
    a, b = words(train), words(evaluation)
    runs = []
    for start in range(len(b)):
        run = b[start : start + 13]
        if len(run) == 13 and run not in runs:
            runs.append(run)
    inside = sum(any(a[k : k + 13] == run for k in range(len(a))) for run in runs)
    return inside / len(runs) if runs else 0.0


def test_against_a_slow_loop():
    rng = random.Random(5)
    alphabet = ["one", "two"]  # few words, so that runs repeat within and between texts

    def text():
        return " ".join(rng.choices(alphabet, k=rng.choice([5, 14, 18])))

    checked = set()
    for _ in range(20):
        pieces = [text() for _ in range(4)]
        train = problems(
            *(rng.choice(["", "x "]) + " ".join(rng.sample(pieces, 2)) for _ in range(8)), prefix="t"
        )
        evaluation = problems(*(" ".join(rng.sample(pieces, rng.choice([1, 2]))) for _ in range(5)))
        found = {o.eval_id: o for o in find_overlaps(train, evaluation)}
        _, removed = decontaminate(train, evaluation)
        close = set()
        for e in evaluation:
            shares = [slow_share(t.prompt, e.prompt) for t in train]
            exact = [normalise(t.prompt) == normalise(e.prompt) for t in train]
            close |= {t.id for t, s, x in zip(train, shares, exact, strict=True) if x or s >= 0.5}
            if any(exact):
                assert (found[e.id].kind, found[e.id].train_id) == ("exact", train[exact.index(True)].id)
            elif max(shares) >= 0.5:
                best = train[shares.index(max(shares))].id
                assert found[e.id] == Overlap(e.id, best, "near", round(max(shares), 4), "b")
            else:
                assert e.id not in found
            checked.add("exact" if any(exact) else "near" if max(shares) >= 0.5 else "none")
        assert [p.id for p in removed] == [t.id for t in train if t.id in close]
    assert checked == {"exact", "near", "none"}


# --- named sets, kept results, the note --------------------------------------------------------------


@pytest.fixture
def sets(project, write):
    train = [{"id": f"train-{k}", "problem": t, "answer": "1"} for k, t in enumerate((LONG, "Two!", "Three"))]
    test = [{"id": f"test-{k}", "problem": t, "answer": "1"} for k, t in enumerate((LONG[:-3], "two"))]
    write(project, "train.jsonl", train)
    write(project, "test.jsonl", test)
    return project


def test_contamination_of_named_sets(sets, write, monkeypatch):
    near, exact = (
        Overlap("test-0", "train-0", "near", 1.0, "train"),
        Overlap("test-1", "train-1", "exact", 1, "train"),
    )
    assert contamination("train", "test", sets) == [near, exact]
    # a second training set is closer to the first problem
    closer = {"id": "l", "problem": LONG[:-3], "answer": "1"}
    write(
        sets,
        "levels.jsonl",
        [closer | {"id": f"l{k}", "problem": t} for k, t in enumerate((LONG[:-3], "a", "b", "c"))],
    )
    better = Overlap("test-0", "l0", "exact", 1.0, "levels")
    assert contamination(["train", "levels"], "test", sets) == [better, exact]
    assert contamination(["levels", "train"], "test", sets) == [better, exact]
    with pytest.raises(ValueError, match="holds 'test' itself"):
        contamination(["test"], "test", sets)


def test_results_are_kept_by_content(sets, write, monkeypatch):
    folder = sets / "data" / "benchmarks"
    first = contamination("train", "test", sets)
    kept = list((folder / ".cache" / "contamination").glob("*.json"))
    assert len(kept) == 1 and (folder / ".gitignore").read_text() == "*\n"

    calls = itertools.count()
    original = overlap.overlapping_pairs

    def counted(*arguments):
        next(calls)
        return original(*arguments)

    monkeypatch.setattr(overlap, "overlapping_pairs", counted)
    assert contamination("train", "test", sets) == first
    assert next(calls) == 0
    kept[0].write_text("damaged")
    assert contamination("train", "test", sets) == first  # computed again
    assert next(calls) == 2
    write(sets, "train.jsonl", [{"id": f"t{k}", "problem": str(k), "answer": "1"} for k in range(3)])
    assert contamination("train", "test", sets) == []  # another text is another key
    assert next(calls) == 4
    monkeypatch.setattr(overlap, "THRESHOLD", 0.9)  # and so is another threshold
    contamination("train", "test", sets)
    assert next(calls) == 6


def test_a_folder_that_cannot_be_written_costs_time_only(sets, tmp_path):
    (tmp_path / "file").write_text("")
    train, evaluation = problems("a"), problems("a")
    cache = tmp_path / "file" / "deep" / "down"
    for _ in range(2):
        found = overlap.contamination_of(train, {"e": evaluation}, cache)
        assert [o.kind for o in found["e"]] == ["exact"]


def test_note(sets, write):
    note = "Small test: 2 of 2 problems are in Small train (1 verbatim, 1 near)."
    assert contamination_note("test", "train", sets) == note
    assert "\n" not in note
    clean = [{"id": f"l{k}", "problem": str(k), "answer": "1"} for k in range(4)]
    write(sets, "levels.jsonl", clean)
    assert contamination_note("test", ["levels"], sets) == ""
    assert contamination_note("test", ["levels", "train"], sets) == note
    write(sets, "levels.jsonl", [clean[0] | {"problem": "TWO"}, *clean[1:]])
    assert contamination_note("test", ["train", "levels"], sets) == (
        note[:-1] + ", 1 in Small levels (1 verbatim, 0 near)."
    )


def test_note_without_data(project):
    assert contamination_note("test", ["train"]) == (
        "Small test: 9 of 2 problems are in Small train (4 verbatim, 5 near, as recorded)."
    )
    assert contamination_note("test", ["levels"]) == "Small test was not compared with Small levels."
    assert contamination_note("test", []) == ""


def test_problems_are_compared_not_their_ids():
    train = [replace(p, id="same") for p in problems("a", LONG)]
    kept, removed = decontaminate(train, problems("a"))
    assert [p.prompt for p in kept] == [LONG] and [p.prompt for p in removed] == ["a"]
