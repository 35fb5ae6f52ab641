"""The word lists behind :mod:`rlvr.analysis.token_categories`.

``*_TEXT`` holds the paper's own examples [text: NFPO appendix D.1]; everything beside them extends the list
in the sense of the category's description [choice]. Words are lower case, inflected forms are spelled out,
and no word stands in two lists: where the descriptions allow two, the remark says which won.
"""

from __future__ import annotations

# Logical and discourse connectors. "first" and "next" come here and not to numbers or adjectives [text].
CONNECTIVES_TEXT = "therefore since because however thus also first next finally wait actually".split()
CONNECTIVES = frozenset(
    [
        *CONNECTIVES_TEXT,
        *(
            # conclusion, reason, condition
            "so hence consequently accordingly thereby whence then ergo if iff unless whenever provided "
            "implies otherwise else "
            # contrast and concession; "and", "or", "that" and "which" stay function words
            "but although though yet whereas while despite instead rather nevertheless nonetheless "
            "conversely alternatively "
            # order and addition
            "firstly secondly thirdly lastly afterwards afterward subsequently previously meanwhile "
            "furthermore moreover additionally besides likewise similarly "
            # summary, emphasis, restatement
            "overall altogether namely specifically indeed clearly obviously evidently essentially "
            "basically precisely importantly notably generally "
            # thinking aloud
            "now again well hmm hm oh ah okay ok alright yes perhaps maybe anyway"
        ).split(),
    ]
)

# Verbs, modals and pronouns that introduce a step. Modals come here ("can" [text]), with
# what a tokenizer leaves of them before 't ("couldn"); other auxiliaries do not.
ACTIONS_TEXT = "we let can need find solve use consider assume check verify suppose given define".split()
ACTIONS = frozenset(
    [
        *ACTIONS_TEXT,
        *(
            "lets us couldn shouldn wouldn mustn could may might must shall should will would cannot ought "
            "needs needed needing finds found finding solves solved solving uses used using considers "
            "considered considering assumes assumed assuming checks checked checking verifies verified "
            "verifying supposes supposed supposing gives give gave giving defines defined defining letting "
            "want wants try tries tried trying start starts started starting begin begins began beginning "
            "proceed continue continuing recall remember note notice observe see know known think look "
            "imagine denote denotes denoted denoting represent represents represented representing "
            "introduce recheck reconsider examine examining analyze analyse analyzing explore determine "
            "determines determined determining identify identifying compute computes computed computing "
            "calculate calculates calculated calculating evaluate evaluates evaluated evaluating derive "
            "derives derived deriving deduce conclude concludes concluded infer imply implied means show "
            "shows shown showing prove proves proved proven proving confirm confirms confirmed confirming "
            "test tests tested testing compare comparing count counts counting obtain obtains obtained "
            "obtaining get gets got getting yields yield make makes making take takes taking setting "
            "choose chooses choosing pick apply applies applied applying substitute substitutes "
            "substituted substituting plug plugging replace replacing rewrite rewrites rewriting rearrange "
            "rearranging simplify simplifies simplified simplifying expand expands expanded expanding "
            "factorize factorise factoring combine combines combined combining isolate isolating eliminate "
            "eliminating cancel cancels cancelling canceling convert converts converting express expressed "
            "add adds added adding subtract subtracts subtracted subtracting multiply multiplies "
            "multiplied multiplying divide divides divided dividing differentiate differentiating "
            "integrate integrating complete reduce reduces reduced reducing break breaking follow follows "
            "following rewritten summing equate equating guess return"
        ).split(),
    ]
)

# Closed classes. Pronouns other than "we" and "us" come here, and "and" with the other plain conjunctions.
FUNCTION_TEXT = "the of to is and that which".split()
FUNCTION = frozenset(
    [
        *FUNCTION_TEXT,
        *(
            "a an this these those there here in on at by for with from into onto out off over under above "
            "below between among through during within without against across along around about near "
            "toward towards upon up down after before until till as than like via per beyond behind beside "
            "inside outside except or nor not no neither either both i me my mine myself you your yours he "
            "him his she her hers it its itself they them their theirs themselves our ours ourselves who "
            "whom whose what whatever when where why how whether someone something anything nothing "
            "everything be am are was were been being do does did done doing has had having have don doesn "
            "didn isn aren wasn weren hasn haven hadn ain"  # before 't
            "all any each every some such same other another many much more most few fewer less least "
            "several own"
        ).split(),
    ]
)

# What stands alone where a tokenizer splits "it's" or "don't".
CLITICS = frozenset("'s 't 're 've 'm 'll 'd n't".split())

# Nouns and adjectives of mathematics. "right" is in no list: "right triangle", or "right, so".
MATH_TEXT = "equation function variable root factor triangle integer prime solution".split()
MATH = frozenset(
    [
        *MATH_TEXT,
        *(
            "equations functions variables roots factors triangles integers primes solutions number "
            "numbers digit digits value values term terms expression expressions inequality inequalities "
            "identity formula formulas formulae coefficient coefficients constant constants parameter "
            "parameters polynomial polynomials monomial binomial quadratic cubic linear degree degrees "
            "exponent exponents power powers base logarithm logarithms square squares squared cube cubes "
            "cubed fraction fractions numerator numerators denominator denominators ratio ratios "
            "proportion proportional rate percentage percentages decimal decimals remainder remainders "
            "quotient divisor divisors divisible multiple multiples factorial factorials modulo modulus "
            "congruence congruent parity even odd positive negative nonnegative nonzero real complex "
            "imaginary rational irrational natural whole finite infinite infinity sum sums difference "
            "differences product products total average mean median mode range variance deviation "
            "probability probabilities outcome outcomes event events permutation permutations combination "
            "combinations arrangement arrangements sequence sequences series progression arithmetic "
            "geometric set sets subset subsets element elements union intersection domain codomain "
            "interval intervals limit limits derivative derivatives integral integrals maximum minimum "
            "maximal minimal extremum matrix matrices determinant vector vectors scalar eigenvalue "
            "eigenvalues point points line lines segment segments ray angle angles side sides vertex "
            "vertices edge edges diagonal diagonals polygon polygons quadrilateral rectangle rectangles "
            "rectangular parallelogram trapezoid rhombus pentagon hexagon octagon circle circles radius "
            "radii diameter circumference chord tangent secant arc sector area areas perimeter volume "
            "surface sphere cylinder cone cuboid prism pyramid hypotenuse altitude bisector centroid "
            "perpendicular parallel similar equilateral isosceles scalene acute obtuse length lengths "
            "width height distance slope intercept axis axes coordinate coordinates graph graphs plane "
            "parabola ellipse hyperbola theorem lemma proof proposition corollary axiom definition "
            "condition conditions case cases property properties sine cosine trigonometric inverse "
            "reciprocal symmetric symmetry unknown unknowns answer answers result results equal equality "
            "equivalent distinct consecutive algebra algebraic geometry calculus"
        ).split(),
    ]
)

# Number words and the names of operations between numbers.
NUMBERS_TEXT = "one two hundred half quarter".split()
NUMBERS = frozenset(
    [
        *NUMBERS_TEXT,
        *(
            "zero three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundreds "
            "thousand thousands million millions billion billions trillion trillions dozen dozens halves "
            "quarters "
            # ordinals but "first", which is a connective
            "second third thirds fourth fourths fifth fifths sixth sixths seventh eighth ninth tenth "
            "tenths eleventh twelfth hundredth hundredths thousandth thousandths once twice thrice double "
            "triple percent plus minus times equals"
        ).split(),
    ]
)

# LaTeX commands of mathematics, without their backslash.
COMMANDS_TEXT = "frac sqrt cdot".split()
COMMANDS = frozenset(
    [
        *COMMANDS_TEXT,
        *(
            "dfrac tfrac cfrac binom dbinom tbinom times div pm mp ast star circ bullet oplus otimes le "
            "leq leqslant ge geq geqslant lt gt ll gg ne neq approx equiv sim simeq cong propto mid nmid "
            "sum prod int iint iiint oint lim limsup liminf sup inf max min gcd lcm log ln lg exp sin cos "
            "tan cot sec csc arcsin arccos arctan sinh cosh tanh det dim ker deg arg mod bmod pmod partial "
            "nabla infty prime dots ldots cdots vdots ddots in notin ni subset subseteq supset supseteq "
            "cup cap bigcup bigcap setminus emptyset varnothing forall exists neg land lor wedge vee to "
            "mapsto rightarrow leftarrow leftrightarrow longrightarrow Rightarrow Leftarrow Leftrightarrow "
            "Longrightarrow implies iff therefore because angle measuredangle triangle square perp "
            "parallel degree overline bar hat vec tilde overrightarrow widehat dot ddot lfloor rfloor "
            "lceil rceil vert lvert rvert Vert lVert rVert abs choose over root alpha beta gamma delta "
            "epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma tau "
            "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell Re Im"
        ).split(),
    ]
)

# LaTeX commands of layout, without their backslash.
LAYOUT_TEXT = "boxed begin end text left right".split()
LAYOUT = frozenset(
    [
        *LAYOUT_TEXT,
        *(
            "fbox framebox mbox hbox textbf textit texttt textrm textsf textsc emph underline underbrace "
            "overbrace mathrm mathbf mathit mathsf mathtt mathbb mathcal mathfrak boldsymbol bm rm bf it "
            "cal operatorname displaystyle textstyle scriptstyle limits nolimits big Big bigg Bigg bigl "
            "bigr Bigl Bigr biggl biggr middle quad qquad hspace vspace hfill vfill phantom smallskip "
            "medskip bigskip newline newpage noindent par item section subsection subsubsection paragraph "
            "chapter label ref eqref tag notag nonumber color textcolor colorbox centering hline cline "
            "multicolumn stackrel overset underset substack footnote cite href url title author date "
            "document usepackage documentclass newcommand includegraphics caption langle rangle lbrace "
            "rbrace lbrack rbrack xrightarrow cancel require tiny small large Large"
        ).split(),
    ]
)

# Names that stand without a backslash where a tokenizer splits it off ("\\" + "boxed"), and are no English
# words. Environments are named in braces, so they never carry one.
ENVIRONMENTS = frozenset(
    "align aligned alignat gather gathered eqnarray multline pmatrix bmatrix vmatrix smallmatrix tabular "
    "array itemize enumerate tikzpicture asy".split()
)
BARE_COMMANDS = frozenset(
    "frac dfrac tfrac cfrac sqrt cdot binom leq geq neq leqslant geqslant approx equiv infty sin cos tan "
    "cot sec csc arcsin arccos arctan log ln lim gcd lcm mod bmod pmod ldots cdots vdots overline alpha "
    "beta gamma delta epsilon varepsilon theta lambda mu pi rho sigma tau phi varphi psi omega".split()
)
BARE_LAYOUT = frozenset(
    "boxed fbox mbox textbf textit texttt textrm mathrm mathbf mathbb mathcal mathfrak boldsymbol "
    "operatorname displaystyle quad qquad hspace vspace nonumber hline langle rangle subsection".split()
)
