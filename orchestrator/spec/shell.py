"""Shell scripts as text: their statements, words and variables. Nothing is executed; bash itself finds their ends."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

LETTERS: Final = dict(
    pair.split("=")
    for pair in """A=account C=constraint D=chdir G=gpus H=hold J=job_name L=licenses M=clusters N=nodes O=overcommit
    Q=quiet S=core_spec W=wait a=array b=begin c=cpus_per_task d=dependency e=error i=input k=no_kill m=distribution
    n=ntasks o=output p=partition q=qos s=oversubscribe t=time w=nodelist x=exclude""".split()  # noqa: SIM905
)
"""Long names of sbatch's short options."""

_TIMEOUT_S: Final = 5.0
_BLOCK: Final = re.compile(r"(?:if|for|while|until|select|case|test|\[\[?|function)\s|[\w-]+\s*\(\s*\)")
_HEREDOC: Final = re.compile(r"(?<!<)<<-?\s*['\"]?\w")
_NAMED: Final = re.compile(
    r"(?<!\\)\$(?:(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*|\d)(?::?-(?P<default>[^{}$]*))?\})"
)
_INDEXED: Final = re.compile(r"(?<!\\)\$\{(?P<name>[A-Za-z_]\w*)\[(?P<index>\{task\}|\d+|[@*])\]\}")
_HERE: Final = re.compile(r"`pwd`|\$\(pwd\)|\$\(dirname [^()]*(?:\$0|BASH_SOURCE)[^()]*\)")
_ALL_QUOTED: Final = re.compile(r"\"(\$\{\w+\[@\]\})\"")
_COMMENT: Final = re.compile(r"""(?<!\S)#.*|(?P<kept>(?>\\.|'[^']*'|"(?:\\.|[^"\\])*"|\S)+)""")
_NESTED: Final = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_EXPANSION: Final = rf"(?<!\\)\$(?:{_NESTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})|`[^`]*`"
_DOUBLE: Final = rf"(?>\\.|{_EXPANSION}|[^\"\\])*"
_WHOLE: Final = rf"""(?>\\.|'[^']*'|"{_DOUBLE}"|`[^`]*`|{_NESTED}|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})"""
_PART: Final = re.compile(rf"(?:{_WHOLE}|(?<!&)&(?!&)|[^;&])+", re.DOTALL)
"""Up to `;` or `&&` outside quotes, parentheses and braces."""
WORD: Final = re.compile(rf"(?:{_WHOLE}|\S)+", re.DOTALL)
"""A word as it is written, with its quotes."""
_PIECE: Final = re.compile(
    rf"""\\(?P<escaped>.)|'(?P<literal>[^']*)'|"(?P<double>{_DOUBLE})"|(?P<bare>(?>{_EXPANSION}|[^\\'"])+)|(?P<open>.)""",
    re.DOTALL,
)
_REDIRECT: Final = re.compile(r"\||&?\d?>|&$")
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """A statement of a script with its line and lines (`12-15`), or a block that only a shell understands."""

    line: int
    place: str
    text: str
    block: bool = False


@dataclass
class Variables:
    """The shell variables whose values are known.

    Attributes:
        values: `{lr}` stands for a value that differs between the points of a sweep.
        loops: The values of each placeholder of a loop.
        tasks: The values of each placeholder of the array, one for each task.
        taken: Names that no placeholder can have.
    """

    values: dict[str, str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    loops: dict[str, list[str]] = field(default_factory=dict)
    tasks: dict[str, list[str]] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()

    def placeholder(self, columns: dict[str, list[str]], name: str, values: list[str]) -> str:
        """Return a placeholder for values that differ between the points of a sweep."""
        while name in self.taken or columns.setdefault(name, values) != values:
            name += "_2"
        return f"{{{name}}}"

    def filled(self, text: str) -> str:
        """Return the text with the values of known variables."""
        text = _NAMED.sub(self._named, _ALL_QUOTED.sub(r"\1", _HERE.sub(".", text)))
        return _INDEXED.sub(self._indexed, text)

    def words(self, text: str) -> list[str]:
        """Return the words of a command before any `>` or `|`, with values; raise ValueError for an open quote."""
        redirection = redirection_of(text)
        return words_of(_HERE.sub(".", text.removesuffix(redirection)), self.filled)

    def _named(self, match: re.Match[str]) -> str:
        default = match[0] if match["default"] is None else match["default"]
        return self.values.get(match["bare"] or match["name"], default)

    def _indexed(self, match: re.Match[str]) -> str:
        array, index = self.arrays.get(match["name"]), match["index"]
        if array is None:
            return match[0]
        if index in ("@", "*"):
            return " ".join(word if "$" in word else shlex.quote(word) for word in array)
        chosen = ["".join(array[int(n) : int(n) + 1]) for n in (self.tasks["task"] if index == "{task}" else [index])]
        if index != "{task}":
            return chosen[0]
        return self.placeholder(self.tasks, match["name"].lower().removesuffix("s"), chosen)


def words_of(text: str, fill: Callable[[str], str] = str) -> list[str]:
    """Return the words of a command, each `$(...)` within its word; raise ValueError for an open quote."""
    result: list[str] = []
    for raw in WORD.findall(_ALL_QUOTED.sub(r"\1", text)):
        words, quoted = [""], False
        for piece in _PIECE.finditer(raw):
            kind, part = piece.lastgroup, piece[piece.lastgroup or 0]
            quoted |= kind != "bare"
            if kind == "open":
                raise ValueError("No closing quotation")
            if kind == "bare" and (value := fill(part)) != part:  # which the shell splits
                first, *more = words_of(f"_{value}_")
                words[-1] += first[1:]
                words += more
                words[-1] = words[-1][:-1]
            elif kind == "double":
                words[-1] += re.sub(r"""\\(["\\$`])""", r"\1", fill(part))
            else:
                words[-1] += part
        result += [word for word in words if word or quoted]
    return result


def redirection_of(text: str) -> str:
    """Return a command's part from the first `>` or `|` on, or the `&` at its end; "" for none."""
    return next((text[word.start() :] for word in WORD.finditer(text) if _REDIRECT.match(word[0])), "")


def option(
    words: Sequence[str], letters: Mapping[str, str], ends: Callable[[str], object] = lambda word: word.startswith("-")
) -> tuple[str, str, int]:
    """Return the first option: its name with `_` for `-`, its value, and the number of words that it takes.

    `ends` returns whether a word that follows shows that the option is a flag.
    """
    text, equals, value = words[0].partition("=")
    name = text.lstrip("-").replace("-", "_")
    if re.match("-[^-]", text) and text[1] in letters:
        name = letters[text[1]]
        if len(words[0]) > 2:
            return name, words[0][2:].removeprefix("="), 1
    if equals or name == "module" or len(words) == 1 or ends(words[1]):
        return name, value, 1
    return name, words[1], 2


def statements(text: str, line: int = 1) -> Iterator[Statement]:
    """Yield the statements, from this line on; a loop, a condition, a function or a here-document is one block."""
    for first, lines in whole_lines(tuple(text.splitlines())):
        bare = (_COMMENT.sub(r"\g<kept>", each) for each in lines.splitlines())
        whole = "\n".join(map(str.strip, bare)).strip()
        if not whole or whole.startswith("#"):
            continue
        begin = first + line - 1
        place = f"{begin}-{last}" if (last := begin + lines.count("\n")) > begin else str(begin)
        block, joined = bool(_BLOCK.match(whole) or _HEREDOC.search(whole)), re.sub(r"\s*\\\n\s*", " ", whole)
        for part in [whole] if block else filter(None, map(str.strip, _PART.findall(joined))):
            yield Statement(begin, place, part, block)


@lru_cache(maxsize=64)  # the runs of a campaign share their lines
def whole_lines(lines: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Join the lines that bash reads together; return each text with the number of its first line."""
    result, start = list[tuple[int, str]](), 0
    for end, line in enumerate(lines, 1):
        text = "\n".join(lines[start:end])
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if end == len(lines) or not (goes_on or _is_open(text)):
            result.append((start + 1, text))
            start = end
    return tuple(result)


def _is_open(text: str) -> bool:
    """Return whether bash needs further lines to read a text; it runs nothing. Without bash, all lines are one."""
    if not text.strip():
        return False
    try:
        done = subprocess.run(
            ["bash", "--norc", "-O", "extglob", "-n"],  # which a line may switch on for those after it
            input=f"{text}\n",
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin:/usr/local/bin"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return bool(done.returncode or done.stderr)
