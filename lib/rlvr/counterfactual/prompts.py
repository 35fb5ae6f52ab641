"""The compare-and-correct prompt ``x~ = (x; y; y_ref, ...)`` of IBPO's operator [text: IBPO G.1].

The text's own template is lost ("we use the following compare-and-correct instruction template"), so every
word here is ours. Rules that hold for all templates:

- The response to correct comes before its references, unless a template says otherwise; these keep the order
  in which they are given. Without references (K = 1) the rest of the prompt is the same.
- Nothing says which responses are right: at test time nobody knows, and training and test time share one
  prompt.
- Only the two ends of a long response are shown: of the tokens (embedded tasks) or characters (texts)
  beyond ``limit``, a stretch is left out of the middle, since a solution begins with its plan and ends in its
  answer. The prompt then says so. A correction is still compared with the whole response.

Embedded tasks have a :class:`TokenTemplate`, in tokens of their own vocabulary; models that read text a
:class:`TextTemplate`, one per kind of problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlvr.checks import check_choice, check_integer

Part = Literal["problem", "response", "references"]


def shorten(tokens: list[int], limit: int | None, gap: Sequence[int] = ()) -> list[int]:
    """``tokens``, or its two ends with ``gap`` between them so that the whole has ``limit`` tokens.

    Of an odd number of tokens the beginning has one more. None: no limit.

    Raises:
        ValueError: a limit that leaves no token at either end.
    """
    if limit is None:
        return list(tokens)
    least = len(gap) + 2
    limit = check_integer("limit", limit, least, f"whole numbers >= {least}")
    if len(tokens) <= limit:
        return list(tokens)
    shown = limit - len(gap)
    return [*tokens[: shown - shown // 2], *gap, *tokens[len(tokens) - shown // 2 :]]


@dataclass(frozen=True)
class TokenTemplate:
    """A prompt in the words of an embedded task [choice].

        compare             x  y .  y_ref .  ... ?
        references_first    x  y_ref .  ... y . ?
        problem_last        y .  y_ref .  ... x          (a problem ends in "?" itself)

    Attributes:
        order: of the problem, the response and its references.
        after: token after every response that is shown.
        end: last token where the problem is not last; as after a problem, the solution follows it.
        gap: token in place of what is left out of a long response.
    """

    order: tuple[Part, Part, Part] = ("problem", "response", "references")
    after: str = "."
    end: str = "?"
    gap: str = "?"


#: By the name that a scale file says.
TOKEN_TEMPLATES = {
    "compare": TokenTemplate(),
    "references_first": TokenTemplate(("problem", "references", "response")),
    "problem_last": TokenTemplate(("response", "references", "problem")),
}


class TokenPrompts:
    """Correction prompts of an embedded task, as token ids.

    Args:
        template: name in :data:`TOKEN_TEMPLATES`.
        encode: text to ids (:meth:`rlvr.problems.tokenizer.Codec.encode`).
        eos_id: end token; responses are shown without theirs.
        limit: tokens shown of one response, at most; None: all.
    """

    def __init__(
        self, template: str, encode: Callable[[str], list[int]], eos_id: int, limit: int | None = None
    ) -> None:
        self.template = TOKEN_TEMPLATES[check_choice("template", template, tuple(TOKEN_TEMPLATES))]
        self._after, self._end, self._gap = map(
            encode, (self.template.after, self.template.end, self.template.gap)
        )
        self._eos_id, self._limit = eos_id, limit

    def __call__(
        self, problem: Sequence[int], response: Sequence[int], references: Sequence[Sequence[int]] = ()
    ) -> list[int]:
        """``x~`` of one response; ``references`` may be none (K = 1)."""
        parts = {
            "problem": list(problem),
            "response": self._shown(response),
            "references": [t for tokens in references for t in self._shown(tokens)],
        }
        ids = [t for name in self.template.order for t in parts[name]]
        return ids if self.template.order[-1] == "problem" else ids + self._end

    def _shown(self, tokens: Sequence[int]) -> list[int]:
        kept = [t for t in tokens if t != self._eos_id]
        return shorten(kept, self._limit, self._gap) + self._after


@dataclass(frozen=True)
class TextTemplate:
    """A prompt in English [choice]: one user message; the model's chat template goes around it.

    Attributes:
        attempts: what introduces the responses; ``{count}`` is their number in words.
        instruction: what is asked for where there are references.
        alone: the same where there are none.
    """

    attempts: str
    instruction: str
    alone: str


_LOCAL = (
    "Keep every part of attempt 1 that is right as it is, word for word; change what is wrong and what "
    "follows from it, and nothing else. Do not start over."
)
_MATH = "find the first step of attempt 1 that is wrong. Then write attempt 1 again, corrected."
_BOXED = "End with the final answer in \\boxed{}."
_CODE = "find where attempt 1 computes something else than the task asks for. Then write it again, corrected."
_BLOCK = "Give the complete program in one ```python block."
#: By kind of problem, as :mod:`rlvr.problems.benchmarks` names it.
TEXT_TEMPLATES = {
    "math": TextTemplate(
        attempts="Here {count} at this problem. It is not known which of them is right, if any.",
        instruction=f"Compare the attempts step by step and {_MATH} {_LOCAL} {_BOXED}",
        alone=f"Check attempt 1 step by step and {_MATH} {_LOCAL} {_BOXED}",
    ),
    "function": TextTemplate(
        attempts="Here {count} at this task. It is not known which of them passes the tests, if any.",
        instruction=f"Compare the attempts and {_CODE} {_LOCAL} {_BLOCK}",
        alone=f"Check attempt 1 and {_CODE} {_LOCAL} {_BLOCK}",
    ),
}
TEXT_TEMPLATES["stdin"] = TEXT_TEMPLATES["function"]
_COUNTS = ("", "is one attempt", "are two attempts", "are three attempts", "are four attempts")
_TAG = re.compile(r"<(?=/?attempt\b)", re.IGNORECASE)


def visible(response: str, thinking: Literal["drop", "keep"] = "drop") -> str:
    """What of a response is shown: what follows its reasoning, if it has any [choice].

    With ``drop``, the text after the last ``</think>``; of a response that ends within its reasoning, or
    right after it, the reasoning. ``keep``: all of it.
    """
    check_choice("thinking", thinking, ("drop", "keep"))
    if thinking == "keep":
        return response.strip()
    reasoning, closed, rest = response.rpartition("</think>")
    text = rest if closed and rest.strip() else (reasoning if closed else rest)
    return text.replace("<think>", "").strip()


def text_prompt(
    kind: str,
    problem: str,
    response: str,
    references: Sequence[str] = (),
    limit: int | None = 24_000,
    thinking: Literal["drop", "keep"] = "drop",
    template: TextTemplate | None = None,
) -> str:
    """``x~`` of one response as text.

    Args:
        kind: of the problem, ``math``, ``function`` or ``stdin``; names the template.
        problem: as the model was asked it.
        response: the one to correct.
        references: others to the same problem, none to three.
        limit: characters shown of one response, at most (24,000 are about 8,000 tokens, so that two fit a
            context of 32k with room for the correction) [choice]; None: all.
        thinking: whether reasoning before the answer is shown, see :func:`visible`.
        template: None: that of the kind.

    Raises:
        ValueError: another kind, or more references.
    """
    template = template or TEXT_TEMPLATES[check_choice("kind", kind, tuple(TEXT_TEMPLATES))]
    count = 1 + len(references)
    if count >= len(_COUNTS):
        raise ValueError(f"references: allowed are up to {len(_COUNTS) - 2}, got {len(references)}")
    parts = [problem.strip(), template.attempts.format(count=_COUNTS[count])]
    for number, text in enumerate((response, *references), start=1):
        shown = _cut(_TAG.sub("< ", visible(text, thinking)), limit)  # no response closes its own frame
        parts.append(f'<attempt number="{number}">\n{shown}\n</attempt>')
    parts.append(template.instruction if references else template.alone)
    return "\n\n".join(parts)


def _cut(text: str, limit: int | None) -> str:
    if limit is None or len(text) <= limit:
        return text
    limit = check_integer("limit", limit, 2, "whole numbers >= 2")
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    return f"{head}\n[... {len(text) - limit} characters left out ...]\n{tail}"
