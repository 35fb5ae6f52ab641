"""Secrets stay out of everything that is printed or written: names of them may be seen, values may not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

#: A variable of such a name holds a secret.
SECRET_NAME = re.compile(
    r"^(?!(?:OLD)?PWD$).*?(?:^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASS|PWD|PAT|CREDENTIALS?|WEBHOOK|AUTH|(\w+_?)?KEY)S?"
    r"(_URL|_READ|_WRITE|_?\d+)*$|(TOKEN|SECRET|PASSWORD|APIKEY|ACCOUNTKEY)S?$",
    re.I,
)
#: Values that are secrets wherever they come from: tokens of Hugging Face, GitHub, GitLab, NVIDIA, OpenAI;
#: AWS access keys; webhooks; what follows ``Bearer`` or ``Basic``; a key of Weights & Biases after its name.
SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|nvapi-[\w-]{16,}"
    r"|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16})\b"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+|(?<=Bearer )[\w.~+/=-]{6,}|(?<=Basic )[\w+/=]{8,}"
    r"|(?<=wandb)(?P<gap>[^0-9a-f]{0,40})\b[0-9a-f]{40}\b"
)
#: NAME=value, "NAME": "value", api_key: value, whatever the value is; a value in quotes to their end.
ASSIGNED = re.compile(
    r"(?P<name>\b[A-Za-z0-9_-]*(?:TOKEN|SECRET|PASSWORD|PASSWD|PWD|(?:API|ACCESS|ACCOUNT|PRIVATE|AUTH|WANDB|OPENAI)[_-]?KEY)"
    r"(?:_READ|_WRITE|_?\d+)?['\"]?\s*[=:]\s*)"
    r"(?P<value>'[^']{3,}'|\"[^\"]{3,}\"|[^\s'\",}]{3,})",
    re.I,
)
IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+@")
SHORTEST = 8  # characters; a shorter value would blot out words


def secret_names(environment: Mapping[str, str] | None = None) -> list[str]:
    """Names of the variables that hold secrets here."""
    environment = os.environ if environment is None else environment
    return sorted(name for name, value in environment.items() if value and SECRET_NAME.search(name))


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """``text`` without the values of this process's secrets, and without what looks like one."""
    environment = os.environ if environment is None else environment
    held = sorted(secret_names(environment), key=lambda name: -len(environment[name]))
    for name in held:
        if len(environment[name]) >= SHORTEST:
            text = text.replace(environment[name], f"[{name}]")
    text = SECRET_VALUE.sub(lambda m: (m["gap"] or "") + "[redacted]", text)
    text = ASSIGNED.sub(_without_value, text)
    return IN_ADDRESS.sub("", text)


def _without_value(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    quote = value[0] if value[0] in "'\"" else ""
    return name + (value if _harmless(value) else f"{quote}[redacted]{quote}")


def redact_all(value: Any, environment: Mapping[str, str] | None = None) -> Any:
    """:func:`redact` on every text of nested lists and mappings, keys included."""
    if isinstance(value, str):
        return redact(value, environment)
    if isinstance(value, Mapping):
        return {redact(str(k), environment): redact_all(v, environment) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(item, environment) for item in value]
    return value


def check_no_secret(words: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Raises ValueError if a command line holds a secret: Ray's dashboard and ``ps`` would show it."""
    for word in words:
        if redact(word, environment) != word:
            raise ValueError(
                f"override={redact(word, environment)!r} holds a secret: set it in the environment in "
                "which Ray is started on the cluster, and leave it out here"
            )


def _harmless(value: str) -> bool:
    """Numbers, as in ``max_token=16384`` or ``perf/token: 1234.5``, and what is redacted already."""
    value = value.strip("'\"")
    return value.startswith("[") or re.fullmatch(r"[-+0-9.,e:/]+|None|null|True|False", value) is not None
