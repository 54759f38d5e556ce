"""Errors of the program or of what it was given, by their class and grammar, whatever subject they name. Pure.

Such an error may speak of a timeout, a proxy or NCCL because an argument, a key or a library is called so: nobody
waited, no connection broke, and no other rank died.
"""

from __future__ import annotations

import re

from . import vocabulary as words
from .raised import Raised

MISTAKEN = (
    "TypeError", "NameError", "AttributeError", "LookupError", "ImportError", "NotImplementedError", "AssertionError",
    "ArithmeticError", "ValueError", "SyntaxError", "RecursionError", "YAMLError", "ConfigError", "UsageError",
    "OmegaConfBaseException", "PickleError", "BufferError",
)  # fmt: skip
"""Classes that say that the program asked for what cannot be."""
OF_STATE = "ValueError", "LookupError", "AssertionError"
"""Those of them that libraries also raise about what they find."""
OF_TEXT = "TypeError", "NameError", "AttributeError", "LookupError", "ImportError", "SyntaxError"
"""Those that Python itself raises of a program's text: the words are names in it."""
OF_INPUT = "YAMLError", "ConfigError", "UsageError", "OmegaConfBaseException"
"""Those of arguments and configurations."""
OF_COMPILED = (
    "Unsupported", "UserError", "RecompileError", "FailOnRecompileLimitHit", "UncapturedHigherOrderOpError",
    "CondOpArgsMismatchError",
)  # fmt: skip
"""What torch's compiler says of the program that it reads; its other errors may be a tool's or a machine's."""
_OF_PATHS = "FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "PermissionError"
SIGNATURE = re.compile(
    r"unexpected keyword argument|missing \d+ required|takes .{0,30}arguments? but|takes no (?:keyword )?arguments"
    r"|multiple values for (?:keyword )?argument|required positional|invalid keyword argument|not JSON serializable"
    r"|[Cc]an(?:'t|not) pickle|can't be used with|device type tensor to numpy|unsupported ScalarType|abstract class"
    r"|'(?:module|function|method|type|property|builtin_function_or_method)' object"
)
"""How a call is written, whatever it is called with."""
MISTAKEN_NAME = re.compile(
    r"(?:Config|Configuration|Validation|Argument|Usage|Pars|Schema|Definition|Unsupported|Invalid(?!State)|Compatib"
    r"|Version(?!Conflict)|NotImplemented|NotAllowed|Misconfiguration|Misconfig|Override|Template)"
    r"\w*(?:Error|Exception|ing)?$"
)
MISTAKEN_MODULES = ("deepspeed.", "omegaconf.", "hydra.", "pydantic", "yaml.", "jsonschema.", "argparse", "click.")
"""Modules whose exceptions are about what they were given."""

_OF_OTHERS = re.compile(
    r"\b[Ee]rrors?\b|nccl\w*Error|[Cc]onnect|[Cc]losed|\breset|[Tt]ime[d -]{0,2}out|[Rr]emote|[Pp]eer|[Aa]bort"
    r"|[Ww]atchdog|[Ff]ail|\b(?:died|exit|SIG[A-Z]|signal|terminated|broken|waiting|recv|network|EOF|end of)|TCPStore"
)
"""What a message speaks of that tells of others, or of the machine."""


def of_the_program(raised: Raised) -> bool:
    """Whether its class says that the program's text, or what it was given, is wrong.

    Classes that libraries also raise about what they find must demand something.
    """
    message = raised.message
    if raised.is_a("OSError", "NetworkError", "TimeoutError") or words.PASSING.search(message):
        return False
    if raised.is_a(*OF_TEXT, *OF_INPUT):
        return True
    if words.PASSING_REFUSAL.search(message) or words.STATUS.search(message):
        return False
    stated = raised.is_a(*OF_STATE) or MISTAKEN_NAME.search(raised.name)
    return bool(stated and words.DEMAND.search(message))


def own(raised: Raised) -> bool:
    """Whether it is the rank's own fault and no echo, though it names what the ranks communicate with."""
    if of_the_program(raised) or raised.is_a(*_OF_PATHS):
        return True
    said = words.ADVICE.sub("", raised.message)
    return raised.name == "RuntimeError" and bool(words.DEMAND.search(said)) and not _OF_OTHERS.search(said)
