"""Take an sbatch script apart, without a shell: nothing in it is executed, and lines that need one are reported."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Final

_LETTERS: Final = dict(
    pair.split("=")
    for pair in """A=account C=constraint D=chdir G=gpus H=hold J=job-name L=licenses M=clusters N=nodes O=overcommit
    Q=quiet S=core-spec W=wait a=array b=begin c=cpus-per-task d=dependency e=error i=input k=no-kill m=distribution
    n=ntasks o=output p=partition q=qos s=oversubscribe t=time w=nodelist x=exclude""".split()  # noqa: SIM905
)
_BLOCKS: Final = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
_FUNCTION: Final = re.compile(r"(?:function\s+[\w-]+|[\w-]+\s*\(\s*\))")
_HEREDOC: Final = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_REFERENCE: Final = re.compile(
    r"(?<!\\)\$(?:(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:\[\$?\{?(?P<index>\w+|@|\*)\}?\])?(?::?-(?P<default>[^{}$]*))?\})"
)
_HERE: Final = re.compile(r"`pwd`|\$\(pwd\)")
_ALL_QUOTED: Final = re.compile(r"\"(\$\{\w+\[@\]\})\"")
_PRODUCT: Final = re.compile(r"\$\(\(\s*(\d+(?:\s*\*\s*\d+)*)\s*\)\)")
_IN_PRODUCT: Final = re.compile(r"(?<=\$\(\()[^()]*(?=\)\))")
_ARRAY: Final = re.compile(r"^(?:declare -a |export )?\w+=\(")
_COMMENT: Final = re.compile(r"(?:^|\s+)#[^'\"]*$")
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
            return shlex.split(self.text)
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
        text = _IN_PRODUCT.sub(lambda match: re.sub(r"(?<![\w$])\$?([A-Za-z_]\w*)", r"${\1}", match[0]), text)
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
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            name, value = _LETTERS.get(word[1:2], word), word[2:].removeprefix("=")
            equals = value
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        options[name.removeprefix("--").replace("-", "_")] = value
    return options


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements; a loop, a condition, a function or a here-document is one block."""
    lines = iter(enumerate(text.splitlines(), 1))
    for first, line in lines:
        last, whole = first, _COMMENT.sub("", line.strip())
        while whole.endswith("\\") and (more := next(lines, None)):
            last, whole = more[0], f"{whole[:-1].rstrip()} {_COMMENT.sub('', more[1].strip())}"
        if not whole.strip() or whole.startswith("#"):
            continue
        while _ARRAY.search(whole) and whole.count("(") > whole.count(")") and (more := next(lines, None)):
            last, whole = more[0], f"{whole} {_COMMENT.sub('', more[1].strip())}"
        kind, opens, closes = _block(whole)
        depth = len(opens.findall(whole)) - len(closes.findall(whole)) if kind else 0
        while depth > 0 and (more := next(lines, None)):
            last, body = more[0], more[1].strip()
            whole += f"\n{body}"
            depth += len(opens.findall(body)) - len(closes.findall(body))
        place = str(first) if first == last else f"{first}-{last}"
        yield from (Statement(place, part, kind) for part in ([whole] if kind else _parts(whole)))


def _block(line: str) -> tuple[str, re.Pattern[str], re.Pattern[str]]:
    """Return what kind of block begins here, "" for none, and the patterns of its begin and end."""
    if match := _HEREDOC.search(line):
        return "a here-document", _HEREDOC, re.compile(rf"^{match[2]}$")
    first = line.split(maxsplit=1)[0]
    if end := _BLOCKS.get(first):
        return (
            f"`{first}`",
            re.compile(rf"(?:^|[;&|]\s*|\b(?:then|do|else) +){first}\b"),
            re.compile(rf"(?:^|[;\s]){end}\b"),
        )
    if _FUNCTION.match(line):
        return "a function", re.compile(r"\{(?=\s|$)"), re.compile(r"(?:^|[;\s])\}(?=\s|;|$)")
    return "", _HEREDOC, _HEREDOC


def _parts(line: str) -> list[str]:
    """Split at `;` and `&&` outside quotes and parentheses."""
    parts, quote, depth = [""], "", 0
    for at, char in enumerate(line):
        escaped = line[at - 1 : at] == "\\"
        if char in "'\"" and not escaped and quote in ("", char):
            quote = "" if quote else char
        depth += 0 if quote == "'" else (char == "(") - (char == ")")
        is_end = not quote and not depth and not escaped and (char == ";" or line[at : at + 2] == "&&")
        if is_end or (char == "&" and line[at - 1 : at + 1] == "&&" and not parts[-1]):
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]
