"""Problems: what is asked is what is solved, and no split can leak into another."""

import ast
import hashlib
import itertools
import re
from dataclasses import replace

import pytest

from rlvr.problems import SPLITS, TASKS, Problem, by_difficulty, get_task
from rlvr.problems.base import HELD_OUT_SHARE, VALIDATION_SHARE, split_of
from rlvr.problems.files import read_problems, write_problem_set, write_problems
from rlvr.problems.report import difficulty_counts, overlap, summarise, to_frame
from rlvr.problems.tokenizer import Codec, build_tokenizer

WORD = get_task("word")

# sha256 of the joined ids of 6000, 600 and 1500 problems with seed 0
DIGESTS = {"train": "e7eb82ad5f69", "validation": "97435a2a00b8", "held_out": "c79eb9b9d262"}


@pytest.fixture(scope="module")
def splits():
    sizes = {"train": 6000, "validation": 600, "held_out": 1500}
    return {split: WORD.generate(split, n, seed=0) for split, n in sizes.items()}


@pytest.fixture(scope="module")
def codec():
    return Codec(build_tokenizer(WORD.words))


def reworded(prompt: str) -> str:
    """The same story in other words, by a table of its own."""
    table = dict(
        buys="wins", finds="gets", gets="finds", makes="picks", picks="makes", wins="buys", drops="sells"
    )
    table |= dict(
        eats="spends", gives="loses", loses="gives", sells="drops", spends="eats", them="all", all="them"
    )
    words = re.findall(r"[A-Za-z]+|[0-9]+|[^\w\s]", prompt)
    return " ".join(table.get(word, "Leo" if word.istitle() else word) for word in words)


def evaluate(content: str) -> list[int]:
    """Values after each step, left to right (Python's own precedence would differ)."""
    first, *steps = re.findall(r"^[0-9]+|[+*-][0-9]", content)
    values = [int(first)]
    for step in steps:
        values.append(
            {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[step[0]](values[-1], int(step[1]))
        )
    return values


# --- determinism -------------------------------------------------------------------------------------


def test_first_problems_are_the_typed_in_ones():
    train, validation, held_out = (WORD.generate(split, 1, seed=0)[0] for split in SPLITS)
    assert train == Problem(
        id="7b9ca817e5542ed4",
        prompt="Jack has 18 stones and buys 7, drops 8 and doubles all, gets 7 then drops 7, eats 1."
        " how many stones?",
        answer="33",
        solution="18+7=25,25-8=17,17*2=34,34+7=41,41-7=34,34-1=33",
        kind="word",
        difficulty=6,
        split="train",
        content="18+7-8*2+7-7-1",
    )
    assert (
        validation.prompt
        == "Gina keeps 19 books, gets 1, doubles them, buys 7 and doubles them. how many books?"
    )
    assert validation.solution == "19+1=20,20*2=40,40+7=47,47*2=94"
    assert held_out.prompt == (
        "Kim has 7 coins then eats 1 and gets 9 then gets 8 then gets 5. how many coins now?"
    )
    assert held_out.id == "587bf0e0d03783c2"


def test_long_lists_have_the_typed_in_hash(splits):
    digests = {
        split: hashlib.sha256("".join(p.id for p in problems).encode()).hexdigest()[:12]
        for split, problems in splits.items()
    }
    assert digests == DIGESTS


def test_prefix_does_not_depend_on_n(splits):
    for split, problems in splits.items():
        assert WORD.generate(split, 300, seed=0) == problems[:300]


def test_train_stream_is_generate_without_end():
    assert list(itertools.islice(WORD.train_stream(3), 700)) == WORD.generate("train", 700, seed=3)


def test_seeds_give_other_problems():
    # numpy alone would not tell 0 from (0, 0), nor 2**32 from (0, 1)
    seeds = (0, 1, (0, 0), (0, 1), (1, 0), 2**32, (2**32, 7), (0, 1 + 7 * 2**32))
    draws = [WORD.generate("train", 200, seed) for seed in seeds]
    for a, b in itertools.combinations(draws, 2):
        assert len({p.id for p in a} & {p.id for p in b}) < 5
    assert WORD.generate("train", 5, 7) == WORD.generate("train", 5, (7,))


def test_a_generator_seed_and_ids_do_not_depend_on_the_process(tmp_path):
    import subprocess
    import sys

    code = "from rlvr.problems import get_task; print(get_task('word').generate('held_out', 20, 5)[-1].id)"
    env = {"PYTHONHASHSEED": "12345", "PATH": ""}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == WORD.generate("held_out", 20, 5)[-1].id


# --- disjoint splits ---------------------------------------------------------------------------------


@pytest.mark.fault("trained-on-the-test")
def test_splits_share_nothing(splits):
    assert (overlap(splits) == 0).all(axis=None)


def test_overlap_sees_a_rewording_and_a_shortened_problem(splits):
    """The proof above can fail: plant each kind of leak and see it counted."""
    contents = [p.content for p in splits["held_out"]]
    victim = next(
        p
        for p in splits["held_out"]
        if p.difficulty == 3 and sum(content.startswith(p.content) for content in contents) == 1
    )
    longer = victim.prompt.replace(".", " and wins 1.")
    for leak, found in (
        (victim.prompt, {"prompts": 1, "contents": 1, "contained": 0}),
        (reworded(victim.prompt), {"prompts": 0, "contents": 1, "contained": 0}),
        (longer, {"prompts": 0, "contents": 0, "contained": 1}),
    ):
        planted = splits | {"train": [*splits["train"], replace(victim, prompt=leak, split="train")]}
        assert overlap(planted).loc["train / held_out"].to_dict() == found


def test_split_is_a_function_of_the_arithmetic_not_of_the_wording(splits):
    for split, problems in splits.items():
        for problem in problems[:400]:
            other = reworded(problem.prompt)
            assert other != problem.prompt
            content = WORD.content_of(other)
            assert content == problem.content
            group = re.match(r"[0-9]+(?:[+*-][0-9]){3}", content).group()
            assert split_of(group) == split == problem.split


def test_evaluation_splits_hold_no_content_twice_under_any_seed():
    for split in ("validation", "held_out"):
        for seed in (0, 1):
            contents = [p.content for p in WORD.generate(split, 800, seed)]
            assert len(set(contents)) == 800


def test_shares_of_the_splits():
    counts = dict.fromkeys(SPLITS, 0)
    for i in range(20_000):
        counts[split_of(f"group {i}")] += 1
    assert counts["held_out"] / 20_000 == pytest.approx(HELD_OUT_SHARE, abs=0.01)
    assert counts["validation"] / 20_000 == pytest.approx(VALIDATION_SHARE, abs=0.01)


# --- what a problem says -----------------------------------------------------------------------------


def test_prompt_says_what_is_solved(splits):
    for problem in itertools.chain(*splits.values()):
        assert WORD.content_of(problem.prompt) == problem.content


def test_chain_of_thought_is_right(splits):
    """Each ``a op b = c`` re-evaluated by Python, each a the c before it, first and last as asked."""
    for problem in itertools.chain(*splits.values()):
        steps = problem.solution.split(",")
        assert len(steps) == problem.difficulty
        results = []
        for step in steps:
            left, result = step.split("=")
            tree = ast.parse(left, mode="eval")
            assert isinstance(tree.body, ast.BinOp)
            assert eval(compile(tree, "step", "eval"), {}) == int(result)
            if results:
                assert tree.body.left.value == results[-1]
            results.append(int(result))
        values = evaluate(problem.content)
        assert values[1:] == results
        assert 1 <= min(values) and max(values) <= 99
        assert problem.answer == str(results[-1]) == re.findall(r"[0-9]+", problem.solution)[-1]


def test_own_solutions_are_right_and_others_are_not(splits):
    problems = splits["held_out"][:500]
    solutions, answers = [p.solution for p in problems], [p.answer for p in problems]
    assert WORD.rewards(solutions, answers) == [1.0] * 500
    shifted = WORD.rewards(solutions, answers[1:] + answers[:1])
    assert shifted == [float(a == b) for a, b in zip(answers, answers[1:] + answers[:1], strict=True)]


@pytest.mark.parametrize("operations", [(3, 6), (1, 2), (4, 4), (8, 9)])
def test_operations_bound_steps_and_lengths(operations, codec):
    problems = WORD.generate("train", 400, 0, operations)
    assert {p.difficulty for p in problems} == set(range(operations[0], operations[1] + 1))
    longest = max(len(codec.encode(p.solution, end=True)) for p in problems)
    assert longest <= WORD.max_response_tokens(operations)


def test_longest_solution_fits_the_limit_exactly():
    assert WORD.max_response_tokens((3, 6)) == 48 == len("99-9=90," * 6)


def test_number_of_steps_is_uniform(splits):
    sizes = {d: len(problems) / 6000 for d, problems in by_difficulty(splits["train"]).items()}
    assert list(sizes) == [3, 4, 5, 6]
    assert all(abs(share - 0.25) < 0.03 for share in sizes.values())


def test_same_arithmetic_has_several_wordings():
    wordings: dict[str, set[str]] = {}
    for problem in WORD.generate("train", 3000, 1, operations=(1, 1)):
        wordings.setdefault(problem.content, set()).add(problem.prompt)
    assert max(map(len, wordings.values())) > 10


# --- files -------------------------------------------------------------------------------------------


def test_files_hold_the_problems_and_the_tokenizer(tmp_path, splits, codec):
    parts = {split: problems[:50] for split, problems in splits.items()}
    write_problem_set(tmp_path, parts, codec)
    write_problem_set(tmp_path, parts, codec)  # replaces what is there
    for split, problems in parts.items():
        assert read_problems(tmp_path / "problems" / f"{split}.jsonl") == problems
    assert Codec.load(tmp_path / "tokenizer").tokens == codec.tokens
    assert sorted(p.name for p in tmp_path.iterdir()) == ["problems", "tokenizer"]  # nothing partial left


def test_files_that_were_changed_are_refused(tmp_path, splits):
    path = tmp_path / "held_out.jsonl"
    write_problems(path, splits["held_out"][:3])
    good = path.read_text()
    first, second, third = good.splitlines()
    for bad, message in (
        (first + "\n" + second[:-5], r"held_out\.jsonl:2 is not a problem"),
        (first.replace(" has ", " owns "), r"held_out\.jsonl:1: id='587bf0e0d03783c2' is not the hash"),
        (third.replace('"kind"', '"king"'), r"held_out\.jsonl:1 is not a problem"),
    ):
        path.write_text(bad)
        with pytest.raises(ValueError, match=message):
            read_problems(path)


# --- bad input ---------------------------------------------------------------------------------------


def test_get_task_suggests():
    assert get_task("word") is TASKS["word"]
    with pytest.raises(ValueError, match=r"task='wrod' is unknown.*did you mean 'word'"):
        get_task("wrod")
    with pytest.raises(ValueError, match=r"task='chess' is unknown, tasks are \[.*'word'\]$"):
        get_task("chess")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("test", 1, 0), "split='test' must be one of"),
        (("train", -1, 0), "n=-1 must be"),
        (("train", 1, -1), "seed=-1 must be"),
        (("train", 1, 2**64), "seed=18446744073709551616 must be"),
        (("train", 1, True), "seed=True must be"),
        (("train", 1, ()), r"seed=\(\) must be"),
        (("train", 1, (0, 0.5)), "seed="),
        (("train", 1, 0, (4, 3)), r"operations=\(4, 3\) must be"),
        (("train", 1, 0, (0, 3)), r"operations=\(0, 3\) must be"),
        (("held_out", 200, 0, (1, 1)), r"n=200 distinct problems.*only about \d\d exist"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        WORD.generate(*arguments)


@pytest.mark.parametrize("prompt", ["", "hello", "Anna has 11 pens. how many pens?", "Anna buys 6."])
def test_content_of_refuses_other_texts(prompt):
    with pytest.raises(ValueError, match="is not a problem of the task 'word'"):
        WORD.content_of(prompt)


# --- summary -----------------------------------------------------------------------------------------


def test_summary_counts_what_is_there(codec):
    three = [p for p in WORD.generate("held_out", 60, 2) if p.difficulty == 3][:3]
    problems = [replace(p, answer=a) for p, a in zip(three, ("7", "7", "90"), strict=True)]
    row = summarise({"held_out": [*problems, problems[0]]}, codec).loc["held_out"]
    assert (row["n"], row["distinct"]) == (4, 3)
    assert (row["most_common_answer"], row["most_common_share"]) == (7, 0.75)
    assert (row["answer_min"], row["answer_max"]) == (7, 90)
    lengths = [len(re.findall(r"[0-9]|[A-Za-z]+|[^\w\s]", p.prompt)) for p in [*problems, problems[0]]]
    assert row["prompt_tokens_mean"] == sum(lengths) / 4 and row["prompt_tokens_max"] == max(lengths)
    assert row["response_tokens_max"] == max(len(p.solution) for p in problems) + 1
    assert difficulty_counts({"held_out": problems}).loc["held_out"].to_dict() == {3: 3}


def test_summary_refuses_nothing_and_missing_solutions(codec):
    with pytest.raises(ValueError, match="problems is empty"):
        to_frame([], codec)
    with pytest.raises(ValueError, match="has no solution"):
        to_frame([replace(WORD.generate("train", 1, 0)[0], solution=None)], codec)


def test_lengths_are_as_designed(splits, codec):
    table = summarise(splits, codec)
    assert table["prompt_tokens_mean"].between(22, 25).all()
    assert table["response_tokens_mean"].between(33, 36.5).all()
    assert (table["most_common_share"] < 0.05).all()  # a constant answer earns next to nothing
