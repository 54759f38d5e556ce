"""The kinds of errors: what an exception's class, its place, its errno and the time say, whatever its words. Pure.

A kind is asked after the rules that know an error's own words (`rules.py`), and before nothing: what no kind knows is a
crash. Where words count here, they are the vocabulary of a subject (what is not finite, who waited for whom), not
sentences. The first kind that holds counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from . import errnos
from .errnos import Fault
from .places import Place, places
from .policy import FailureClass
from .raised import Raised
from .verdict import Finding, Sureness


@dataclass(frozen=True)
class Scene:
    """An exception and its circumstances.

    Attributes:
        trained: whether the experiment has ever made a step, so that its configuration works.
        resumes: whether it began from a checkpoint and has made no step since.
        nodes: how many nodes the attempt has.
    """

    raised: Raised
    trained: bool
    resumes: bool = False
    nodes: int = 1

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """What the stack was doing, innermost first."""
        return places(self.raised.frames)

    @property
    def where(self) -> Place | None:
        """The innermost of them."""
        return self.places[0] if self.places else None

    @cached_property
    def text(self) -> str:
        """Type and message, or for an assertion without words its source."""
        raised = self.raised
        return raised.text if raised.message.strip() else f"{raised.type}: {raised.statement}"

    @cached_property
    def fault(self) -> Fault | None:
        """Who is at fault by the errno."""
        number = self.raised.errno
        if number in errnos.OF_FILES:
            return Fault.STORAGE if self.about_files else Fault.NETWORK
        return errnos.FAULTS.get(number) if number is not None else None

    @property
    def resuming(self) -> bool:
        """Whether the source on the stack speaks of resuming."""
        return any(_RESUMING.search(frame.function) or _RESUMING.search(frame.code) for frame in self.raised.frames)

    @property
    def about_files(self) -> bool:
        """Whether a file was being used: the error names a path, or checkpoints or data were read or written."""
        busy = {Place.SAVING, Place.LOADING, Place.DATA}
        return bool(_PATH.search(self.raised.message)) or not busy.isdisjoint(self.places)


@dataclass(frozen=True)
class Kind(Finding):
    """A kind of error."""

    holds: Callable[[Scene], bool] = lambda _: False


def by_errno(scene: Scene) -> Kind | None:
    """What its errno proves, None if it has none that proves anything."""
    return next((kind for kind in SYSTEM_KINDS if kind.holds(scene)), None)


def kind_of(scene: Scene) -> Kind | None:
    """What kind of error it is; None if it is of none that is known."""
    return next((kind for kind in KINDS if kind.may_hold(scene.trained, scene.resumes) and kind.holds(scene)), None)


# -- vocabulary -----------------------------------------------------------------------------------------------


def _words(pattern: str) -> re.Pattern[str]:
    """Whole words, where `_` parts words too; upper or lower case."""
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE)


_PATH = re.compile(r"['\" ]/[\w.-]+(?:/|['\"])")
_NOT_FINITE = _words(
    r"nans?|infs?|infinit\w*|non-?finite|not[ _]finite|is_?(?:nan|inf|finite)|overflow\w*|underflow\w*|diverg\w+|explod\w+|blew up"
)
_NOT_A_NUMBER = _words(r"nans?|non-?finite|not[ _]finite|is_?(?:nan|finite)")
_OF_NAN = re.compile(r"NaN|NAN|Nan(?=[A-Z]|$)|Non[Ff]inite|NotFinite|Diverge|Infinite|Inf(?=[A-Z])|Explod")
"""In the name of a class of one's own."""
_SCALE = _words(r"loss[_ ]scal\w*|(?:grad)?[_ ]?scaler?")
_SPENT = _words(r"minim\w*|below|zero|exhaust\w*|too (?:small|low)|0")
_LOSS = _words(r"loss(?:es)?|perplexity|ppl|grad[_ ]?norm")
_OUT_OF_BOUNDS = _words(r"exceed\w*|above|too (?:large|high|big)|spik\w*|threshold|limit")
_TRAINED_VALUE = _words(
    r"loss(?:es)?|grad(?:ient)?s?|norms?|logits?|activations?|weights|parameters?|params?|perplexity|ppl|probability|probs?"
    r"|scaler?|outputs?|hidden states?|rewards?|training|model|backward"
)
_BROKE_OFF = _words(
    r"stop\w*|abort\w*|exit\w*|terminat\w*|halt\w*|quit\w*|giving up|bail\w*|kill\w*|end(?:ing|ed)|fail\w*"
)
_DATA_VALUE = _words(r"input|columns?|dataset|features?|array|dataframe|csv")

_WAITED = _words(
    r"time[d]?[- ]?out\w*|timeout\w*|stuck|no (?:progress|steps?|heartbeat|activity|output|sign of life)|hung|hang(?:s|ing)?|deadlock\w*|stall\w*|not respond\w*"
    r"|unresponsive|waited|still waiting|did not (?:arrive|join|reach|complete|finish|enter)|desync\w*|straggl\w*"
)
_TOGETHER = _words(
    r"all_?reduce\w*|all_?gather\w*|reduce_?scatter\w*|broadcast\w*|\w*barrier\w*|all_?to_?all\w*|collectives?|nccl\w*|gloo"
    r"|process[ _]?groups?\w*|ranks?|watchdog|torch\.distributed\w*|c10d\w*|TCPStore|store|peers?|rendezvous|allreduce\w*"
    r"|send|recv|isend|irecv|deepspeed\.comm\w*|comm"
)
_DUMP = re.compile(r"Timeout \(\d+:\d\d:\d\d")
"""faulthandler's, from `dump_traceback_later`."""
_MEETING = _words(r"connect\w*|clients? joined|rendezvous\w*|master[ _]?(?:addr\w*|node)|join\w*|bind|listen\w*")

_NETWORK = re.compile(
    r"HTTPS?Connection|Max retries exceeded|[Nn]ame resolution|[Nn]ame or service not known|getaddrinfo|resolve host"
    r"|\bSSL\w*|\bTLS\b|Bad Gateway|Service (?:Temporarily )?Unavailable|[Rr]ate limit|Too Many Requests|[Pp]roxy"
    r"|[Rr]ead timed out|[Cc]onnection (?:reset|refused|aborted|timed out|error|broken|closed)|[Nn]etwork is"
    r"|\bfor url\b|(?:Client|Server) Error\b|couldn't connect|[Cc]annot connect|(?:ailed|nable) to (?:connect|reach|download|resolve|fetch)"
)
_STATUS = re.compile(r"\b([45]\d\d)\b(?=[^\n]{0,40}(?:Error|Not Found|Forbidden|Unauthorized|Gateway|Unavailable|Requests))"
                     r"|(?:status(?:[_ ]code)?|HTTP|code)[:= /.\d]{0,6}\b([45]\d\d)\b")  # fmt: skip
_REFUSAL = re.compile(
    r"[Ff]orbidden|[Uu]nauthorized|Access ?[Dd]enied|NoSuch(?:Key|Bucket)|[Nn]ot authorized|[Nn]o ?[Cc]redentials|[Ii]nvalid (?:\w+ )?"
    r"(?:token|credentials?|API key)|[Nn]ot configured|does(?:n't| not) exist|gated|RepositoryNotFound|InvalidSchema|MissingSchema"
)
_NETWORK_MODULES = ("requests.", "urllib3.", "urllib.", "httpx.", "httpcore.", "aiohttp.", "botocore.", "http.", "google.api",
                    "huggingface_hub.", "s3fs.", "gcsfs.", "azure.")  # fmt: skip
_PASSING_STATUS = frozenset({408, 409, 421, 423, 425, 429})

_TOOL = re.compile(
    r"(?<![\w./-])(?:nvcc|ninja|gcc|[gc]\+\+|cc1plus|ptxas|clang(?:\+\+)?|cmake|hipcc|ld|cicc|make)(?![\w+-])"
    r"|\b(?:C\+*|CUDA|host) compiler|\w+\.(?:h|hpp|cuh|cu|cpp)\b: No such file|cannot find -l\w+|CUDA_HOME|CPATH"
    r"|(?:JIT|extension|kernel|op)s? (?:load\w*|build\w*|compil\w*)|[Bb]uild(?:ing)? (?:of )?extension",
)
_TOOL_TYPES = ("TorchDynamoException", "CppCompileError", "CompilationError", "PTXASError", "LoweringException",
               "MissingCUDAException", "CUDAMismatchException", "CompileError", "OutOfResources", "CppCompileError",
               "CompileTimeAssertionFailure")  # fmt: skip
_KILLED = re.compile(
    r"[Kk]illed|SIGKILL|signal (?:9|terminated)|exit (?:status|code) (?:-9|137)|\b-9\b|Resource temporarily"
)

_DEVICE_FAILED = re.compile(
    r"CUDA(?: driver)? (?:error|failure|init)|cuda failure|[A-Z]_STATUS_[A-Z]|cuDNN error|NCCL error|HIP error|Xid"
)
_MACHINE = re.compile(
    r"CUDA|[cC]uDNN|CUBLAS|NCCL|NVML|\b[Dd]rivers?\b|\bGPUs?\b|[Cc]ompute capability|\bsm_\d\d|device_count|MIG|P2P"
)
_CIRCUMSTANCE = re.compile(
    r"[Cc]onnect|[Nn]etwork|\bsockets?\b|[Ss]ervers?\b|[Tt]ime(?:d)?[- ]?out|[Dd]ownload|[Uu]navailable|[Tt]emporar"
    r"|\bretr(?:y|ies)|\b(?:un)?lock(?:ed|s)?\b|\bbusy\b|\bmemory\b|\bSIG[A-Z]{3,}|\bsignal \d|[Kk]illed|[Tt]erminated|[Aa]brupt"
    r"|\bexited\b|\bdisk\b|\bI/O\b|\bpeers?\b|\bhosts?\b|\baddress\b|\bports?\b|\bresolve\b|\bSSL|\bHTTP|[Cc]orrupt|[Tt]runcated"
    r"|unexpectedly|\b(?:died|dead|lost|gone|vanished|disappeared)\b|\bcrash|[Ww]atchdog|[Hh]eartbeat|\bqueue\b|\bquota\b|\bbroken\b"
    r"|\bcancel|new thread|at step \d|epoch \d|too many open"
)
"""What a message speaks of that may be otherwise the next time."""
_ADVICE = re.compile(
    r"\b(?:Please|If (?:you|this|the)|See|Try|Consider|Make sure|Alternatively|You (?:can|may|might)|For (?:more|debugging)|Visit|Search for"
    r"|This (?:may|might|could|usually|is usually))\b.*?(?:\.\s|\n|$)"
)
"""Sentences for the reader, which name what has not happened."""
_DEMAND = re.compile(
    r"\b(?:must|should|needs? to|ha(?:s|ve) to|requires?d?|expect(?:s|ed)|only supports?|(?:is|are) not (?:supported|allowed"
    r"|compatible|defined|implemented|valid|recogni[sz]ed|available|installed|registered|divisible|permitted|set|found|a )"
    r"|not (?:supported|implemented|allowed|divisible|compatible|recogni[sz]ed|understood)|does(?:n't| not) (?:support|match"
    r"|have|exist|require|accept|divide)|unsupported|unknown|unrecogni[sz]ed|unexpected|invalid|illegal|incompatible|mismatch"
    r"|missing|undefined|no such|cannot be (?:used|combined|specified|both|None|negative|zero)|can(?:'t|not) (?:use|combine|mix"
    r"|cast|convert|find|set|pickle|infer|determine|specify|access)|mutually exclusive|please (?:set|specify|use|provide|pass|install"
    r"|upgrade|update|check|make sure)|forgot|not both|either .{1,40} or|greater than|less than|larger than|smaller than|exceeds?"
    r"|out of (?:range|bounds)|duplicate|ambiguous|deprecated|removed|no longer|conflict\w*|already (?:exists|registered|defined)"
    r"|no (?:attribute|module|package|field|key|parameter|option|argument|backend|operator|implementation|kernel|config\w*)"
    r"|did you mean|got an?|but got|empty|too (?:small|large|long|short|few|many|old|new|low|high))\b",
    re.IGNORECASE,
)
"""The grammar of a demand on the caller: what must hold and does not will not hold the next time either."""

_CUDA_ARGUMENT = re.compile(
    r"(?:CUDNN|CUBLAS|CUSOLVER|CUSPARSE|CUFFT|NCCL)_STATUS_(?:BAD_PARAM|NOT_SUPPORTED|ARCH_MISMATCH|VERSION_MISMATCH|INVALID_VALUE"
    r"|SUBLIBRARY\w*|LICENSE\w*)|ncclInvalid(?:Usage|Argument)|no socket interface found"
    r"|CUDA error: (?:invalid (?:argument|configuration argument|device function|resource handle|value)|too many resources requested"
    r"|.{0,40}unsupported toolchain|device kernel image is invalid|API call is not supported|named symbol not found"
    r"|peer access is not supported|operation not supported(?! on)|.{0,20}driver version is insufficient)"
    r"|[Mm]ismatch between collectives|driver version is insufficient|re-initialize CUDA in forked"
)
"""Results of CUDA's libraries that, by their documentation, stand for what the caller passed or built."""
_TENSORS = re.compile(
    r"[Tt]ensors?\b|\bdtypes?\b|autograd|gradient computation|in-?place|backward\(?|requires_grad|\bstrides?\b|\bshapes?\b"
    r"|dimensions?\b|\bmat\d\b|multiplied|embedding|contiguous|leaf variable|computation(?:al)? graph"
)
"""What torch's operators complain of."""

_MISTAKEN = (
    "TypeError", "NameError", "AttributeError", "LookupError", "ImportError", "NotImplementedError", "AssertionError",
    "ArithmeticError", "ValueError", "SyntaxError", "RecursionError", "YAMLError", "ConfigError", "UsageError",
    "OmegaConfBaseException", "PickleError", "BufferError",
)  # fmt: skip
"""Classes that say that the program asked for what cannot be."""
_SIGNATURE = re.compile(
    r"unexpected keyword argument|missing \d+ required|takes .{0,30}arguments? but|takes no (?:keyword )?arguments"
    r"|multiple values for (?:keyword )?argument|required positional|invalid keyword argument|not JSON serializable"
    r"|[Cc]an(?:'t|not) pickle|can't be used with"
)
"""How a call is written, whatever it is called with."""
_MISTAKEN_NAME = re.compile(
    r"(?:Config|Configuration|Validation|Argument|Usage|Pars|Schema|Definition|Unsupported|Invalid|Compatib|Version"
    r"|NotImplemented|NotAllowed|Misconfiguration|Misconfig|Override|Template)\w*(?:Error|Exception|ing)?$"
)
_MISTAKEN_MODULES = ("deepspeed.", "omegaconf.", "hydra.", "pydantic", "yaml.", "jsonschema.", "argparse", "click.")
"""Modules whose exceptions are about what they were given."""
_CORRUPT = ("UnpicklingError", "EOFError", "BadZipFile", "SafetensorError", "LZMAError", "BadGzipFile", "error")
_UNREADABLE = re.compile(
    r"[Cc]orrupt|[Tt]runcat|magic number|[Uu]nexpected (?:EOF|end)|central directory|[Ii]ncomplete|[Cc]hecksum"
    r"|(?:hash|digest|CRC\w*|size) (?:mismatch|differs|does not match)|invalid (?:header|load key|data)|bad (?:zip|magic)"
    r"|[Ii]nvalid(?:Header|Tensor|Offset)|HeaderTooLarge|MetadataIncomplete"
)
_DIFFERS = re.compile(r"mismatch|does(?:n't| not) match|missing|differs?\b|instead of|[Ee]xpected|not found|size of")
_RESUMING = re.compile(r"resum|restor|checkpoint|ckpt", re.IGNORECASE)
_CHECKPOINT = re.compile(
    r"checkpoint|ckpt|global_step\d|optim(?:izer)?_states|model_states|\.distcp|\.safetensors|zero_pp_rank|state[_ ]dict",
    re.IGNORECASE,
)


# -- what holds -----------------------------------------------------------------------------------------------


def _near(first: re.Pattern[str], second: re.Pattern[str], text: str, reach: int = 90) -> bool:
    """Whether words of both stand within so many characters of each other."""
    here = [found.start() for found in first.finditer(text)]
    return bool(here) and any(abs(found.start() - at) <= reach for found in second.finditer(text) for at in here)


def not_finite(text: str) -> bool:
    """Whether the text says that a loss, a gradient or another value of training is not finite."""
    return _near(_NOT_FINITE, _TRAINED_VALUE, text) and not _near(_NOT_FINITE, _DATA_VALUE, text, 24)


def breaks_off(text: str) -> bool:
    """Whether the text says that the program ends now."""
    return bool(_BROKE_OFF.search(text))


def waited_for_others(text: str) -> bool:
    """Whether the text says that a rank waited in vain for the others, or is the dump of one that was stuck."""
    return bool(_DUMP.match(text)) or _near(_WAITED, _TOGETHER, text, 160) and not _MEETING.search(text)


def of_circumstances(text: str) -> bool:
    """Whether the text speaks of what may be otherwise the next time."""
    return bool(_CIRCUMSTANCE.search(text)) and bool(_CIRCUMSTANCE.search(_ADVICE.sub("", text)))


def _diverged(scene: Scene) -> bool:
    if scene.raised.is_a(
        "TypeError", "NameError", "AttributeError", "LookupError", "ImportError", "SyntaxError", "OSError"
    ):
        return False  # of a name that sounds so
    raised = scene.raised
    if raised.is_a("FloatingPointError") or _OF_NAN.search(raised.name):
        return True
    text = f"{raised.message} {raised.statement}" if not raised.statement.startswith("raise ") else raised.message
    if not scene.trained:
        return not_finite(text)
    return (
        _near(_NOT_FINITE, _TRAINED_VALUE, text)
        or bool(_NOT_A_NUMBER.search(raised.message))
        or _near(_SCALE, _SPENT, text, 40)
        or _near(_LOSS, _OUT_OF_BOUNDS, text, 60)
        or (raised.is_a("OverflowError") and bool(_TRAINED_VALUE.search(raised.statement)))
    )


def _hung(scene: Scene) -> bool:
    if scene.raised.is_a("NetworkError") or Place.DATA in scene.places[:2]:
        return False
    together = Place.COLLECTIVE in scene.places and _WAITED.search(scene.text)
    return bool(together and not _MEETING.search(scene.text)) or waited_for_others(scene.text)


def _never_met(scene: Scene) -> bool:
    text = scene.text
    return scene.nodes > 1 and bool(_WAITED.search(text) and _MEETING.search(text) and _TOGETHER.search(text))


def _status(scene: Scene) -> int | None:
    found = _STATUS.search(scene.text)
    return int(found[1] or found[2]) if found else None


def _networked(scene: Scene) -> bool:
    return (
        scene.raised.is_a("NetworkError", "ConnectionError")
        or scene.raised.module.startswith(_NETWORK_MODULES)
        or scene.fault is Fault.NETWORK
        or Place.DOWNLOAD in scene.places[:2]
        or bool(_NETWORK.search(scene.text))
    )


def _refused(scene: Scene) -> bool:
    if not _networked(scene):
        return False
    status = _status(scene)
    if status is None:
        return bool(_REFUSAL.search(scene.text))
    return 400 <= status < 500 and status not in _PASSING_STATUS


def _away(scene: Scene) -> bool:
    return _networked(scene)


def _tools(scene: Scene) -> bool:
    if _KILLED.search(scene.text):
        return False
    return scene.raised.is_a(*_TOOL_TYPES) or scene.where is Place.TOOLCHAIN or bool(_TOOL.search(scene.text))


def _unreadable(scene: Scene) -> bool:
    raised = scene.raised
    if Place.DATA in scene.places[:1]:
        return False
    named = bool(_CHECKPOINT.search(raised.text))
    if (named or Place.LOADING in scene.places) and (raised.is_a(*_CORRUPT) or _UNREADABLE.search(raised.message)):
        return True
    if not scene.resumes or not (named or Place.LOADING in scene.places or scene.resuming):
        return False
    lacking = raised.is_a("LookupError", "ValueError", "AssertionError") or _no_such_request(scene)
    return lacking or (named and bool(_DIFFERS.search(raised.message)))


def _no_such_request(scene: Scene) -> bool:
    return scene.fault is Fault.REQUEST or scene.raised.is_a(
        "FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "PermissionError", "FileExistsError"
    )


def _misspelled(scene: Scene) -> bool:
    """An error of the program's text: neither data nor a machine can cause it, except one with other libraries."""
    raised = scene.raised
    return not scene.resumes and (
        raised.is_a("NameError") or (raised.is_a("TypeError") and bool(_SIGNATURE.search(raised.message)))
    )


def _mistaken(scene: Scene) -> bool:
    raised = scene.raised
    if raised.is_a("JSONDecodeError") and "Expecting value" in raised.message:  # an empty answer, or an empty file
        return bool({Place.SETUP, Place.USER}.intersection(scene.places)) and Place.DOWNLOAD not in scene.places
    if Place.TRACKER in scene.places[:1] and not raised.is_a("UsageError"):
        return False
    return raised.is_a(*_MISTAKEN) or bool(_MISTAKEN_NAME.search(raised.name))


def _demanded(scene: Scene) -> bool:
    """A demand on the caller, by any class of exception, that speaks of nothing that may be otherwise next time."""
    raised = scene.raised
    if not raised.type or raised.is_a("KeyboardInterrupt", "GeneratorExit") or raised.module.startswith("mlflow"):
        return False
    if of_circumstances(raised.message) or _DEVICE_FAILED.search(raised.message):
        return False
    in_code = scene.where in (Place.MODEL, Place.SETUP, Place.ARGUMENTS, Place.IMPORT)
    if in_code or raised.module.startswith(_MISTAKEN_MODULES):
        return True
    if raised.statement.startswith("raise ") and scene.where is Place.LIBRARY:
        return True  # a library's own check
    operator = raised.name == "RuntimeError" and _TENSORS.search(raised.message)
    return bool(operator or _DEMAND.search(raised.message))


def _unfit(scene: Scene) -> bool:
    """A demand on the machine: its driver, its GPUs or their number."""
    text = scene.raised.message
    return bool(_CUDA_ARGUMENT.search(text)) or (bool(_MACHINE.search(text)) and _demanded(scene))


_LOWER_RATE = "lower train.lr, or warm up longer"
_FETCH = "fetch it on the login node first"

SYSTEM_KINDS: Sequence[Kind] = (
    Kind(
        "shared-memory",
        FailureClass.HOST_OOM,
        "fewer data-loader workers, or a larger /dev/shm",
        holds=lambda scene: scene.fault is Fault.STORAGE and Place.SHARED_MEMORY in scene.places,
    ),
    Kind("storage", FailureClass.STORAGE, holds=lambda scene: scene.fault is Fault.STORAGE),
    Kind("memory-error", FailureClass.HOST_OOM, holds=lambda scene: scene.fault is Fault.MEMORY),
)
"""What a system call's errno proves, whatever was made of it."""

KINDS: Sequence[Kind] = (
    Kind("loss-not-finite", FailureClass.DIVERGED, _LOWER_RATE, sure=Sureness.LIKELY, holds=_diverged),
    Kind("never-met", FailureClass.NODE, sure=Sureness.LIKELY, holds=_never_met),
    Kind("collective", FailureClass.HANG, sure=Sureness.LIKELY, holds=_hung),
    Kind("checkpoint-unreadable", FailureClass.CHECKPOINT, sure=Sureness.LIKELY, holds=_unreadable),
    Kind("refused", FailureClass.DETERMINISTIC, "a name or a right is wrong", sure=Sureness.LIKELY, holds=_refused, early=True),
    Kind("away", FailureClass.CRASH, _FETCH, sure=Sureness.LIKELY, holds=_away),
    Kind("limit", FailureClass.CRASH, sure=Sureness.LIKELY, holds=lambda scene: scene.fault is Fault.LIMIT),
    Kind(
        "toolchain",
        FailureClass.DETERMINISTIC,
        "load a compiler and CUDA in `slurm.setup` that fit torch",
        per_node=True,
        environment=True,
        sure=Sureness.LIKELY,
        holds=_tools,
        early=True,
    ),
    Kind(
        "no-file",
        FailureClass.DETERMINISTIC,
        "the path must exist on the compute nodes",
        per_node=True,
        holds=_no_such_request,
        early=True,
    ),
    Kind(
        "unfit-machine",
        FailureClass.DETERMINISTIC,
        "the nodes' GPUs or driver are not what the program wants",
        per_node=True,
        environment=True,
        sure=Sureness.LIKELY,
        holds=_unfit,
        early=True,
    ),
    Kind("script-error", FailureClass.DETERMINISTIC, sure=Sureness.LIKELY, holds=_misspelled),
    Kind("script-error", FailureClass.DETERMINISTIC, sure=Sureness.LIKELY, holds=_mistaken, early=True),
    Kind("demand", FailureClass.DETERMINISTIC, sure=Sureness.LIKELY, holds=_demanded, early=True),
)  # fmt: skip
"""In the order of what they prove: a value, the machine, others, and only then the program."""

UNREADABLE_INPUT = Finding(
    "input-unreadable", FailureClass.DETERMINISTIC, "fetch the file again", per_node=True, sure=Sureness.LIKELY
)
"""What an unreadable file is to a run that has no checkpoint yet: what it was given to start from."""
