"""Case studies: the rule against a slow search, typed-in records, and what the figure and the HTML show."""

from __future__ import annotations

import itertools
import math
import re
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from rlvr.analysis.cases import Case, case_summary, case_table, find_cases, shortfall
from rlvr.reporting.cases import TOKEN_INK, TRACE_COLOURS, case_figure, case_html, shown
from rlvr.reporting.inline import inline_svg
from rlvr.reporting.style import THEME_INKS, png_bytes, svg_text, use_style

INTEREST = np.array([True, False, False])
VALUES = ["position", "token", "rho", "trace", "weight", "advantage", "of_interest"]


def response(number, trace, token=None, advantage=1.0, seed=0, step=None, **columns) -> pd.DataFrame:
    """Records of one response; token 0 is of interest, and by default stands at its start alone."""
    length = len(trace)
    return pd.DataFrame(
        {
            "run_response": number, "seed": seed, "step": number if step is None else step,
            "position": range(length), "token": [0] + [1] * (length - 1) if token is None else token,
            "rho": 1.0, "trace": trace, "advantage": advantage, "off_policy": True, **columns,
        }
    )  # fmt: skip


def records(*frames) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True)


def random_records(seed=0, responses=60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frames = []
    for number in range(responses):
        length = int(rng.integers(1, 12))
        frames.append(
            response(
                number,
                rng.choice([0.8, 0.9, 1.0, 1.1, 1.4], length),  # coarse, so that scores tie
                token=rng.integers(0, 3, length),
                advantage=float(rng.choice([-1.0, 0.0, 0.5])),
                seed=number % 3,
                step=number % 7,
                rho=rng.uniform(0.8, 1.2, length),
                off_policy=bool(rng.random() < 0.8),
            )
        )
    return records(*frames)


def slow_cases(rows, span, count, kind):
    """(score, seed, step, response, position) of the chosen spans: every span, sorted, by the definition."""
    sign = 1 if kind == "amplified" else -1
    spans = []
    for number, of_response in rows[rows["off_policy"]].groupby("run_response"):
        of_response = of_response.sort_values("position")
        for start in range(len(of_response)):
            part = of_response.iloc[start : start + span]
            if part["token"].iloc[0] != 0 or not all(sign * a > 0 for a in part["advantage"]):
                continue
            total = 0.0
            for trace in part["trace"]:
                total += trace - 1
            if sign * total > 0:
                first = part.iloc[0]
                spans.append((-sign * total / span, first["seed"], first["step"], number, first["position"]))
    chosen, steps = [], set()
    for found in sorted(spans):
        if found[1:3] not in steps:
            steps.add(found[1:3])
            chosen.append((-sign * found[0], *found[1:]))
    return chosen[:count]


@pytest.mark.parametrize(("span", "seed"), list(itertools.product((1, 3, 12), range(4))))
def test_the_rule_against_a_slow_search(span, seed):
    rows = random_records(seed).sample(frac=1, random_state=seed)
    cases = find_cases(rows, INTEREST, span, amplified=6, dampened=5)
    for kind, count in (("amplified", 6), ("dampened", 5)):
        found = [
            (c.score, c.seed, c.step, c.response, c.tokens["position"].iloc[0])
            for c in cases
            if c.kind == kind
        ]
        expected = slow_cases(rows, span, count, kind)
        assert [f[1:] for f in found] == [e[1:] for e in expected]
        assert [f[0] for f in found] == pytest.approx([e[0] for e in expected])
    for case in cases:
        of_response = rows[rows["run_response"] == case.response].set_index("position").sort_index()
        same = of_response.loc[case.tokens["position"]].reset_index()
        assert list(case.tokens.columns) == VALUES and 1 <= len(case.tokens) <= span
        for column in ("position", "token", "rho", "trace", "advantage"):
            assert case.tokens[column].tolist() == same[column].tolist()
        assert case.tokens["of_interest"].tolist() == (same["token"] == 0).tolist()
        np.testing.assert_allclose(case.tokens["weight"], same["rho"] * same["trace"])


def test_typed_in():
    rows = records(
        response(0, [1.0, 1.2, 1.4], token=[1, 0, 1], rho=[1.0, 0.5, 2.0]),  # span from position 1
        response(1, [0.8, 0.9, 1.0], advantage=-2.0),
    )
    case, other = find_cases(rows, INTEREST, span=2)
    assert (case.kind, case.seed, case.step, case.response) == ("amplified", 0, 0, 0)
    assert case.score == pytest.approx((0.2 + 0.4) / 2)
    assert case.tokens.values.tolist() == [
        [1, 0, 0.5, 1.2, 0.6, 1.0, True], [2, 1, 2.0, 1.4, 2.8, 1.0, False]
    ]  # fmt: skip
    assert (other.kind, other.response, other.score) == ("dampened", 1, pytest.approx(-0.15))
    assert other.tokens["advantage"].tolist() == [-2.0, -2.0]


def test_a_span_that_ends_early_gains_nothing():
    """A mean over its own tokens would prefer the short span."""
    short, long = response(0, [1.4]), response(1, [1.3, 1.3, 1.3])
    assert [c.response for c in find_cases(records(short, long), INTEREST, span=3)] == [1, 0]


def test_signs_of_advantage_and_trace_decide():
    up, down = [1.3, 1.3], [0.8, 0.8]
    rows = records(
        response(0, up, advantage=-1.0),  # a penalty made larger
        response(1, down, advantage=1.0),  # a reward made smaller
        response(2, up, advantage=0.0),
        response(3, [1.0, 1.0], advantage=1.0),  # no change is no case
        response(4, [1.0, 1.0], advantage=-1.0),
        response(5, up, advantage=[1.0, -1.0]),  # of both signs, as a critic may give
        response(6, up, off_policy=False),
        response(7, up, token=[1, 1]),  # no token of interest
    )
    assert find_cases(rows, INTEREST) == []
    assert [c.response for c in find_cases(records(rows, response(8, up)), INTEREST)] == [8]


def test_one_case_per_response_and_per_step():
    rows = records(
        response(0, [1.4] * 6, token=[0] * 6, step=3),
        response(1, [1.3] * 6, step=3),
        response(2, [1.2] * 6, step=3, seed=1),
        response(3, [1.1] * 6, step=4),
    )
    found = find_cases(rows, INTEREST, span=2, amplified=9)
    assert [(c.seed, c.step, c.response) for c in found] == [(0, 3, 0), (1, 3, 2), (0, 4, 3)]
    assert found[0].tokens["position"].tolist() == [0, 1]  # ties within a response: the first


def test_ties_go_by_seed_then_step_then_response():
    rows = records(
        response(0, [1.2], seed=1, step=0), response(1, [1.2], seed=0, step=2),
        response(2, [1.2], seed=0, step=1), response(3, [1.2], seed=0, step=1),
    )  # fmt: skip
    for order in range(3):
        shuffled = rows.sample(frac=1, random_state=order)
        found = find_cases(shuffled, INTEREST, amplified=3)
        assert [c.response for c in found] == [2, 1, 0]


def test_spans_stay_in_their_response_and_pass_over_holes():
    holes = response(0, [1.1, 1.2, 1.3]).assign(position=[0, 4, 9])
    (case,) = find_cases(records(holes, response(1, [1.4], token=[1])), INTEREST, span=12)
    assert case.tokens["position"].tolist() == [0, 4, 9]


def test_too_few_are_said_and_none_is_invented():
    cases = find_cases(records(response(0, [1.2])), INTEREST)
    assert shortfall(cases) == (
        "Too few spans fulfil the rule: 1 amplified span of 4 asked for, no dampened spans of 1 asked for."
    )
    assert shortfall(cases, 1, 0) == "" and shortfall([], 0, 0) == ""
    assert find_cases(random_records(), INTEREST, amplified=0, dampened=0) == []
    assert find_cases(random_records().assign(off_policy=False), INTEREST) == []


def test_a_function_may_say_what_is_of_interest():
    rows = random_records()
    by_array, by_call = (find_cases(rows, of) for of in (INTEREST, lambda token: token == 0))
    assert len(by_array) == 5
    for a, b in zip(by_array, by_call, strict=True):
        pd.testing.assert_frame_equal(a.tokens, b.tokens)


def test_case_summary():
    rows = records(response(5, [1.2, 1.1]), response(7, [0.8, 0.9], advantage=-1.0))
    table = case_summary(find_cases(rows, INTEREST), ["Ġso", "\n", "x"])
    assert table["kind"].tolist() == ["amplified", "dampened"]
    assert table["tokens"].tolist() == ["Ġso \n"] * 2
    assert [cell.value for cell in table["trace, largest"]] == [1.2, 0.9]
    assert [cell.value for cell in table["trace, least"]] == [1.1, 0.8]
    assert case_summary([], []).empty


def test_case_table():
    rows = records(response(5, [1.2, 1.1]), response(7, [0.8, 0.9], advantage=-1.0))
    table = case_table(find_cases(rows, INTEREST), ["Ġso", "\n", "x"])
    assert table.columns[:6].tolist() == ["case", "kind", "seed", "step", "response", "score"]
    assert table["case"].tolist() == [1, 1, 2, 2] and table["token"].tolist() == ["Ġso", "\n"] * 2
    assert table["response"].tolist() == [5, 5, 7, 7]
    assert table["weight"].tolist() == [1.2, 1.1, 0.8, 0.9]
    assert case_table([], []).columns.tolist() == table.columns.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.drop(columns="trace"), r"columns \['trace'\] are missing"),
        (lambda r: records(r, r), "one record per token"),
        (lambda r: r.assign(rho=math.nan), "'rho'.*not finite"),
        (lambda r: r.assign(trace=math.inf), "'trace'.*not finite"),
        (lambda r: r.assign(token=3), r"ids 0\.\.2, the records hold 3\.\.3"),
        (lambda r: r.assign(token=-1), "hold -1"),
    ],
)
def test_bad_records(change, message):
    with pytest.raises(ValueError, match=message):
        find_cases(change(random_records()), INTEREST)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"span": 0}, "span=0"), ({"amplified": -1}, "amplified=-1"), ({"dampened": 1.5}, "dampened=1.5"),
        ({"of_interest": [0, 1, 2]}, "one bool per id"), ({"of_interest": np.ones((3, 1), bool)}, "one bool"),
    ],
)  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        find_cases(random_records(), **({"of_interest": INTEREST} | arguments))


# --- shown ---

TOKENS = [
    "Ġtherefore", "Ġwe", "<|im_end|>", "ĊĊ", "$x$", "\\frac", "<b>&\"'", "âĪļ", "âĪ", "ä¸Ń", "Ġ", "1",
    "Ġcounterrevolutionaries" + "s" * 20, "ðŁĺĬ", "<eos>",
]  # fmt: skip


def make_case(kind="amplified", traces=(1.4, 1.2, 1.0, 0.9), first=0, advantage=1.2) -> Case:
    n = len(traces)
    tokens = pd.DataFrame(
        {"position": range(7, 7 + n), "token": [(first + i) % len(TOKENS) for i in range(n)], "rho": 1.05,
         "trace": traces, "advantage": advantage}
    )  # fmt: skip
    tokens["weight"] = tokens["rho"] * tokens["trace"]
    tokens["of_interest"] = tokens.index == 0
    return Case(kind, 1, 20, 345, float(np.mean(traces)) - 1, tokens)


@pytest.fixture
def five():
    use_style()
    traces = np.linspace(0.8, 1.4, 12)
    yield [make_case(traces=np.roll(traces, i), first=3 * i) for i in range(4)] + [
        make_case("dampened", 1 / traces, first=5, advantage=-0.8)
    ]
    plt.close("all")


def drawn_texts(fig):
    return [t for t in fig.axes[0].texts if t.get_text()]


def test_words_neither_overlap_nor_leave_the_figure(five):
    fig = case_figure(five, TOKENS)
    FigureCanvasAgg(fig).draw()
    boxes = [(t.get_text(), t.get_window_extent()) for t in drawn_texts(fig)]
    for text, box in boxes:
        inside = box.x0 >= 0 and box.x1 <= fig.bbox.x1 and box.y0 >= 0 and box.y1 <= fig.bbox.y1
        assert inside, f"{text!r} leaves the figure: {box}"
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert width <= 1 or height <= 2, f"{a!r} lies on {b!r}"


def cells(fig):
    """(colour, linewidth) of every token's cell, in the order of the cases; the scale comes after them."""
    patches = [p for p in fig.axes[0].patches if isinstance(p, Rectangle) and p.get_height() > 10]
    return [(to_hex(p.get_facecolor()), p.get_linewidth()) for p in patches]


def test_colours_are_those_of_log_trace(five):
    fig = case_figure([make_case(traces=(1.25, 1.0, 0.8))], TOKENS)
    colours = [colour for colour, _ in cells(fig)]
    assert colours == [to_hex(TRACE_COLOURS(x)) for x in (1.0, 0.5, 0.0)]  # 1.25 and 0.8 are as far from 1
    assert [width > 0 for _, width in cells(fig)] == [True, False, False]  # outlined: of interest
    half = case_figure([make_case(traces=(4.0, 2.0))], TOKENS)
    assert cells(half)[1][0] == to_hex(TRACE_COLOURS(0.75))
    assert len(cells(case_figure(five, TOKENS))) == 60
    flat = case_figure([make_case(traces=(1.0, 1.0))], TOKENS)  # no division by a width of zero
    assert {c for c, _ in cells(flat)} == {to_hex(TRACE_COLOURS(0.5))}


def test_every_token_stands_over_its_numbers():
    fig = case_figure([make_case(traces=(1.4, 0.83))], TOKENS)
    at = {t.get_text(): t.get_position() for t in drawn_texts(fig)}
    for token, trace in (("·therefore", "1.40"), ("·we", "0.83")):
        assert at[token][0] == at[trace][0] and at[token][1] < at[trace][1]
    assert sum(t.get_text() == "1.05" and t.get_position()[0] == at["·we"][0] for t in drawn_texts(fig)) == 1
    assert any("amplified, advantage +1.20" in text and "345" in text and "7 to 8" in text for text in at)


def test_many_tokens_break_into_lines():
    fig = case_figure([make_case(traces=[1.1] * 60)], TOKENS)
    rows = {
        t.get_position()[1] for t in drawn_texts(fig) if t.get_text() == "1.10" and t.get_ha() == "center"
    }
    assert len(cells(fig)) == 60 and len(rows) > 3
    assert fig.get_figheight() > case_figure([make_case()], TOKENS).get_figheight()
    plt.close("all")


def test_tokens_are_no_formulas_and_no_missing_glyphs(recwarn):
    fig = case_figure([make_case(traces=[1.1] * len(TOKENS))], TOKENS)
    assert not any(t.get_parse_math() for t in drawn_texts(fig))
    written = {t.get_text() for t in drawn_texts(fig)}
    assert {"$x$", "↵↵", "√", "\\xe2\\x88", "□", "·"} <= written
    svg = svg_text(fig)
    assert png_bytes(fig) == png_bytes(case_figure([make_case(traces=[1.1] * len(TOKENS))], TOKENS))
    assert not [w for w in recwarn if "lyph" in str(w.message) or "gridspec" in str(w.message)]
    page = inline_svg(svg, "nfpo-caseD3", "cases")  # nothing in it that the report refuses
    assert TOKEN_INK in page and TOKEN_INK not in THEME_INKS  # dark on the light cells in both themes
    assert not {to_hex(TRACE_COLOURS(x)) for x in np.linspace(0, 1, 257)} & {c.lower() for c in THEME_INKS}
    plt.close("all")


def luminance(rgb):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_on_every_colour():
    ink = [int(TOKEN_INK[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    assert min(contrast(ink, TRACE_COLOURS(x)[:3]) for x in np.linspace(0, 1, 101)) > 7


class Reader(HTMLParser):
    """Text of the <code> elements, their colours, and the balance of all tags."""

    def __init__(self):
        super().__init__()
        self.open, self.tokens, self.colours, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "code":
            self.tokens.append("")
            self.colours.append(dict(attrs)["style"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "code":
            self.tokens[-1] += data


def test_html_shows_every_token_and_runs_nothing(five):
    page = case_html([make_case(traces=[1.1] * len(TOKENS))], TOKENS)
    reader = Reader()
    reader.feed(page)
    assert reader.open == [] and reader.tokens == [shown(t) for t in TOKENS]
    assert reader.tags == {"style", "div", "section", "h4", "p", "span", "code", "small", "footer"}
    assert "<b>" not in page and "&lt;b&gt;&amp;&quot;&#x27;" in page
    assert not re.search(r"https?:|url\(|@import|src=", page)


def test_html_is_readable_on_light_and_dark_pages():
    page = case_html([make_case(traces=(1.25, 1.0, 0.8))], TOKENS)
    shades = [
        tuple(map(float, m)) for m in re.findall(r"background:rgb\((\d+) (\d+) (\d+) / ([\d.]+)\)", page)
    ]
    assert [s[3] for s in shades] == [0.6, 0.0, 0.6]
    assert shades[0][0] > shades[0][2] and shades[2][2] > shades[2][0]  # orange amplifies, blue dampens
    assert set(re.findall(r"[^-]color: ([^;}]+)", page)) == {"inherit"}  # the page's own ink
    for page_ink, paper in (((0.1, 0.1, 0.1), (1, 1, 1)), ((0.9, 0.9, 0.9), (0.08, 0.09, 0.1))):
        for *rgb, alpha in shades:
            under = [alpha * c / 255 + (1 - alpha) * p for c, p in zip(rgb, paper, strict=True)]
            assert contrast(page_ink, under) > 4.5


def test_no_cases_no_figure():
    for draw in (case_figure, case_html):
        with pytest.raises(ValueError, match="cases: none"):
            draw([], TOKENS)
        with pytest.raises(ValueError, match="positive"), np.errstate(divide="ignore"):
            draw([make_case(traces=(0.0, 1.0))], TOKENS)


@pytest.mark.parametrize(
    ("token", "expected"),
    [("Ġthe", "·the"), ("Ċ", "↵"), ("▁so", "·so"), ("ĉ", "⇥"), ("<0x0A>", "↵"), ("+", "+"), ("", "∅"),
     ("\x07", "\\x07"), ("a" * 30, "a" * 23 + "…")],
)  # fmt: skip
def test_shown(token, expected):
    assert shown(token) == expected
