"""Take an sbatch script apart: nothing in it is executed, and lines that need a shell are reported."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from . import shell_lines

LETTERS: Final = dict(
    pair.split("=")
    for pair in """A=account C=constraint D=chdir G=gpus H=hold J=job_name L=licenses M=clusters N=nodes O=overcommit
    Q=quiet S=core_spec W=wait a=array b=begin c=cpus_per_task d=dependency e=error i=input k=no_kill m=distribution
    n=ntasks o=output p=partition q=qos s=oversubscribe t=time w=nodelist x=exclude""".split()  # noqa: SIM905
)
_BLOCKS: Final = frozenset({"if", "for", "while", "until", "select", "case"})
_FUNCTION: Final = re.compile(r"(?:function\s+[\w-]+|[\w-]+\s*\(\s*\))")
_HEREDOC: Final = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1(?s:.*\n)")
_REFERENCE: Final = re.compile(
    r"(?<!\\)\$(?:(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*|\d)(?:\[\$?\{?(?P<index>\w+|@|\*)\}?\])?(?::?-(?P<default>[^{}$]*))?\})"
)
_HERE: Final = re.compile(r"`pwd`|\$\(pwd\)")
_ALL_QUOTED: Final = re.compile(r"\"(\$\{\w+\[@\]\})\"")
_PRODUCT: Final = re.compile(r"\$\(\(\s*(\d+(?:\s*\*\s*\d+)*)\s*\)\)")
_IN_PRODUCT: Final = re.compile(r"(?<=\$\(\()[^()]*(?=\)\))")
_TOKEN: Final = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?P<comment>(?<!\S)#.*)|.""", re.DOTALL)
_EXPANSION: Final = re.compile(
    r"(?<!\\)(?:\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\$\{(?:[^{}]|\{[^{}]*\})*\}|`[^`]*`)"
)
_REDIRECT: Final = re.compile(r"\s*(?:\||&?\d?>|&\s*$).*", re.DOTALL)
_HIDDEN: Final = {ord(char): 0xE000 + ord(char) for char in "\n \"'|>&\\"}
_SHOWN: Final = {hidden: char for char, hidden in _HIDDEN.items()}
_WHOLE: Final = (
    r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|`[^`]*`|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\{(?:[^{}]|\{[^{}]*\})*\}"""
)
_PART: Final = re.compile(rf"(?:{_WHOLE}|(?<!&)&(?!&)|[^;&])+", re.DOTALL)
"""Up to `;` or `&&` outside quotes, parentheses and braces."""
WORD: Final = re.compile(rf"(?:{_WHOLE}|\S)+", re.DOTALL)
"""A word as it is written, with its quotes."""
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
TASK: Final = "SLURM_ARRAY_TASK_ID"


@dataclass(frozen=True)
class Statement:
    """A statement of the script, or a block that only a shell understands.

    Attributes:
        place: its line, or lines such as `12-15`.
        block: what makes it a block, "" if it is none.
    """

    place: str
    text: str
    block: str = ""

    @property
    def words(self) -> list[str]:
        """Return its words without quotes; [] if a quote is not closed."""
        try:
            return words_of(self.text)
        except ValueError:
            return []


@dataclass
class Variables:
    """The shell variables whose values are known, as far as they are.

    Attributes:
        arrays: values of arrays, by name.
        axes: the placeholder of each array whose value depends on the task of the job array, and of that task.
    """

    values: dict[str, str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        """Return the text with the values of known variables, and with products of numbers."""
        text = _IN_PRODUCT.sub(lambda match: re.sub(r"(?<![\w${])\$?([A-Za-z_]\w*)", r"${\1}", match[0]), text)
        text = _REFERENCE.sub(self._value, _ALL_QUOTED.sub(r"\1", _HERE.sub(".", text)))
        return _PRODUCT.sub(lambda match: str(prod(map(int, match[1].split("*")))), text)

    def _value(self, match: re.Match[str]) -> str:
        name, index = match["bare"] or match["name"], match["index"]
        if name == TASK or (index == TASK and name in self.arrays):
            return f"{{{self.axes.setdefault(name, 'task' if name == TASK else name.lower())}}}"
        if index in ("@", "*") and name in self.arrays:
            return " ".join(word if "$" in word else shlex.quote(word) for word in self.arrays[name])
        default = match[0] if match["default"] is None else match["default"]
        return match[0] if index else self.values.get(name, default)


def words_of(text: str, *, redirected: bool = True) -> list[str]:
    """Return the words of a command, each `$(...)` within its word; without `redirected`, up to the first `>` or `|`.

    Raises:
        ValueError: A quote is not closed.
    """
    text = _EXPANSION.sub(lambda match: match[0].translate(_HIDDEN), text)
    if not redirected:
        operators = {ord(char): _HIDDEN[ord(char)] for char in "|>&"}
        text = _TOKEN.sub(lambda match: match[0].translate(operators) if match[0][0] in "\\'\"" else match[0], text)
        text = _REDIRECT.sub("", text)
    return [word.translate(_SHOWN) for word in shlex.split(text)]


def options_of(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the options of each `#SBATCH` line, with its number; a flag has the value ""."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            lines.append((str(number), _options(line.removeprefix("#SBATCH"))))
        elif line.strip() and not line.startswith("#"):
            break  # sbatch reads none below the first command
    return lines


def _options(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return {text.strip(): ""}
    options: dict[str, str] = {}
    while words:
        name, value, used = option(words, LETTERS)
        options[name], words = value, words[used:]
    return options


def option(
    words: Sequence[str], letters: Mapping[str, str], ends: Callable[[str], object] = lambda word: word.startswith("-")
) -> tuple[str, str, int]:
    """Return the first option: its name with `_` for `-`, its value, and the number of words that it takes.

    Args:
        letters: long names of short options.
        ends: whether a word that follows shows that the option is a flag.
    """
    text, equals, value = words[0].partition("=")
    name = text.lstrip("-").replace("-", "_")
    if not text.startswith("--") and text[1:2] in letters:
        name = letters[text[1]]
        if len(words[0]) > 2:
            return name, words[0][2:].removeprefix("="), 1
    if equals or name == "module" or len(words) == 1 or ends(words[1]):
        return name, value, 1
    return name, words[1], 2


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements; a loop, a condition, a function or a here-document is one block."""
    for first, lines in shell_lines.statements(tuple(text.splitlines())):
        whole = "\n".join(map(_uncommented, lines.splitlines())).strip()
        if not whole or whole.startswith("#"):
            continue
        place = f"{first}-{last}" if (last := first + lines.count("\n")) > first else str(first)
        kind, joined = _block(whole), re.sub(r"\s*\\\n\s*", " ", whole)
        for part in [whole] if kind else filter(None, map(str.strip, _PART.findall(joined))):
            yield Statement(place, part, kind)


def _uncommented(line: str) -> str:
    return _TOKEN.sub(lambda match: "" if match["comment"] else match[0], line).strip()


def _block(text: str) -> str:
    first = text.split(maxsplit=1)[0]
    if first in _BLOCKS:
        return f"`{first}`"
    if _FUNCTION.match(text):
        return "a function"
    return "a here-document" if _HEREDOC.search(text) else ""
