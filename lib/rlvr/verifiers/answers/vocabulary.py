"""The words of the notation: what commands and names mean."""

from __future__ import annotations

FUNCTIONS = {
    **{name: name for name in (
        "sin cos tan cot sec csc sinh cosh tanh coth ln log lg exp sqrt abs arcsin arccos arctan arccot "
        "floor ceil factorial binom gcd lcm"
    ).split()},
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "ceiling": "ceil", "comb": "binom",
    "binomial": "binom",
}  # fmt: skip
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho "
    "sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega "
    "hbar ell odot angle triangle star mho".split()
)
SAME_LETTER = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "varrho": "rho"}
RELATIONS = {
    **dict.fromkeys("le leq leqslant".split(), "<="),
    **dict.fromkeys("ge geq geqslant".split(), ">="),
    **dict.fromkeys("ne neq".split(), "!="),
    **dict.fromkeys("approx approxeq simeq thickapprox".split(), "~"),
    "lt": "<", "gt": ">", "in": "in", "eq": "=",
}  # fmt: skip
OPERATORS = {
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "pm": "pm", "mp": "mp", "cup": "cup", "bmod": "mod",
    "lbrace": "{{", "rbrace": "}}", "lbrack": "[", "rbrack": "]", "langle": "(", "rangle": ")", "colon": ":",
    "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "Vert": "|", "lVert": "|", "rVert": "|",
    "setminus": "setminus", "backslash": "setminus",
}  # fmt: skip
DOTS = frozenset("ldots dots cdots dotsc dotsb vdots".split())
STYLES = frozenset("mathbf mathit mathsf mathcal boldsymbol bm rm bf it mathfrak mathbb".split())
ALIASES = {"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
            "varnothing": "emptyset", "degree": "circ"}  # fmt: skip
CURRENCIES = {"USD": "dollar", "EUR": "euro", "GBP": "gbp", "RMB": "yuan", "CNY": "yuan"}
# words before an answer that say nothing
FILLER = frozenset(
    "about approximately approx exactly only roughly is are the a an answer equal equals to value of".split()
)
# short words that are words where they stand alone, not products of letters
PROSE = frozenset(
    "is are was were be been the so we get got for of to it its has had have by as on at if not you can all "
    "any but out now who did let too use our how may no yes an this that with from then thus hence".split()
)
