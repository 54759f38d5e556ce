"""The vocabulary of an error's subjects: what is not finite, who waited for whom, what is demanded of the caller. Pure.

Words and grammar, not sentences: whoever words an error anew uses these again.
"""

from __future__ import annotations

import re


def _words(pattern: str) -> re.Pattern[str]:
    """Whole words, where `_` parts words too; upper or lower case."""
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE)


_QUOTED = re.compile(r"(?<!\w)'[^'\n]{1,80}'(?!\w)|\"[^\"\n]{1,80}\"")
PATH = re.compile(r"['\" ]/[\w.-]+(?:/|['\"])")
_OF_A_NAME = "(?!_(?!loss|grad|value|logit|weight|param|activation|output)[a-z])"
"""What follows a word that is only part of a name, such as `overflow_check`."""
NOT_FINITE = _words(
    r"(?:nans?|infs?|infinit\w*|non-?finite|not[ _]finite|is_?(?:nan|inf|finite)|overflow[a-z]*|underflow[a-z]*"
    r"|diverg[a-z]+|explod[a-z]+|blew up)" + _OF_A_NAME
)
NOT_A_NUMBER = _words(r"(?:nans?|non-?finite|not[ _]finite|is_?(?:nan|finite))" + _OF_A_NAME)
OF_NAN = re.compile(r"NaN|NAN|Nan(?=[A-Z]|$)|Non[Ff]inite|NotFinite|Diverge|Infinite|Inf(?=[A-Z])|Explod")
"""In the name of a class of one's own."""
SCALE = _words(r"loss[_ ]scal\w*|(?:grad|amp|fp16|dynamic)[_ ]?scal\w*|scaler")
SPENT = _words(r"minim\w*|below|zero|exhaust\w*|too (?:small|low)|0")
LOSS_IS = _words(
    r"(?:loss(?:es)?|perplexity|ppl|grad(?:ient)?[_ ]?norm)(?: value)?\W{1,3}"
    r"(?:[\d.+-]+\w*|is|was|of|at|has|went|rose|jumped|exceed\w*|above|over|too|spik\w*|threshold|limit)"
)
"""A loss and what it was; a history, a mask or a function of losses has no such value."""
DEVICE_MEMORY = _words(
    r"(?:gpu|cuda|device|accelerator|hip|xpu|npu)[ _](?:memory|RAM)\w*"
    r"|memory (?:on|of) (?:the |this |each )?(?:device|gpu)|v-?ram|hbm"
)
SHORT = _words(
    r"free|available|insufficient|enough|less than|only|requires?|needs?|needed|remaining|exceed\w*|more than"
)
SIZE = re.compile(r"\d ?(?:[KMGT]i?B|bytes)\b")
OUT_OF_BOUNDS = _words(r"exceed\w*|above|too (?:large|high|big)|spik\w*|threshold|limit")
TRAINED_VALUE = _words(
    r"loss(?:es)?|grad(?:ient)?s?|norms?|logits?|activations?|weights|parameters?|params?|perplexity|ppl"
    r"|probability|probs?"
    r"|scaler?|outputs?|hidden states?|rewards?|training|model|backward"
)
BROKE_OFF = _words(
    r"stop\w*|abort\w*|exit\w*|terminat\w*|halt\w*|quit\w*|giving up|bail\w*|kill\w*|end(?:ing|ed)|fail\w*"
)
DATA_VALUE = _words(r"input|columns?|dataset|features?|array|dataframe|csv")

WAITED = _words(
    r"time[d]?[- ]?out\w*|timeout\w*|stuck|no (?:progress|steps?|heartbeat|activity|output|sign of life)|hung"
    r"|hang(?:s|ing)?|deadlock\w*|stall\w*|not respond\w*"
    r"|unresponsive|waited|still waiting|waiting for (?:the )?(?:others?|rest|remain\w+)|DEADLINE_EXCEEDED"
    r"|(?:did not|failed to) (?:arrive|join|reach|complete|finish|enter)|desync\w*|straggl\w*"
)
TOGETHER = _words(
    r"all_?reduce\w*|all_?gather\w*|reduce_?scatter\w*|broadcast\w*|\w*barrier\w*|all_?to_?all\w*|collectives?"
    r"|nccl\w*|rccl\w*|hccl\w*|oneccl|gloo|horovod|mpi(?:_\w+)?|coordinat(?:ion|or)"
    r"|process[ _]?groups?\w*|ranks?|watchdog|torch\.distributed\w*|c10d\w*|TCPStore|store|peers?|rendezvous"
    r"|allreduce\w*"
    r"|send|recv|isend|irecv|deepspeed\.comm\w*|comm"
)
DUMP = re.compile(r"Timeout \(\d+:\d\d:\d\d")
"""faulthandler's, from `dump_traceback_later`."""
MEETING = _words(r"connect\w*|clients? joined|rendezvous\w*|master[ _]?(?:addr\w*|node)|join\w*|bind|listen\w*")

NETWORK = re.compile(
    r"HTTPS?Connection|Max retries exceeded|[Nn]ame resolution|[Nn]ame or service not known|getaddrinfo|resolve host"
    r"|\bSSL\w*|\bTLS\b|Bad Gateway|Service (?:Temporarily )?Unavailable|[Rr]ate limit|Too Many Requests|\b[Pp]roxy\b"
    r"|[Rr]ead timed out|[Cc]onnection (?:reset|refused|aborted|timed out|error|broken|closed)|[Nn]etwork is"
    r"|\bfor url\b|(?:Client|Server) Error\b|couldn't connect|[Cc]annot connect"
    r"|(?:ailed|nable) to (?:connect|reach|download|fetch|resolve (?:[Hh]ost|[Aa]ddress|[Nn]ame|[Dd]omain|\S+\.\w))"
)
STATUS = re.compile(
    r"\b([45]\d\d)\b(?=[^\n]{0,40}(?:Error|Not Found|Forbidden|Unauthorized|Gateway|Unavailable|Requests))"
    r"|(?:status(?:[_ ]code)?|HTTP|code|[Rr]eturned error)[:= /.\d]{0,6}\b([45]\d\d)\b"
)
"""HTTP's status."""
REFUSAL = re.compile(
    r"[Ff]orbidden|[Uu]nauthorized|Access ?[Dd]enied|NoSuch(?:Key|Bucket)|[Nn]ot authorized|[Nn]o ?[Cc]redentials"
    r"|[Ii]nvalid (?:\w+ )?"
    r"(?:token|credentials?|API key)|[Nn]ot configured|does(?:n't| not) exist|gated|RepositoryNotFound"
    r"|InvalidSchema|MissingSchema"
)
NETWORK_MODULES = (
    *("requests.", "urllib3.", "urllib.", "httpx.", "httpcore.", "aiohttp.", "http."),
    *("botocore.", "google.api", "azure.", "s3fs.", "gcsfs.", "huggingface_hub."),
)
TRACKERS = ("wandb.", "mlflow.", "comet_ml.", "neptune.", "clearml.")
PASSING_FILE = re.compile(
    r"\.(?:lock|tmp|temp|incomplete|partial|part|pid|sock|socket)\b|\.nfs0|/dev/shm/|/proc/\d|/tmp/(?:tmp|pymp-|ray/)"
    r"|No such file or directory: '[^'\n]*/(?:\.triton/cache|torchinductor_\w+)/"
)
"""A file that exists for a moment, or that others also write: whoever misses it was too late or too early."""
OF_NODE = re.compile(r"['\" ]/(?:tmp|var/tmp|dev/shm|proc|run)/")
"""A path of a node's own, where others' files may lie in the way."""
PASSING_REFUSAL = re.compile(
    r"[Rr]ate[- ]?(?:limit|exceeded)|[Tt]oo [Mm]any|SlowDown|Throttl|[Qq]uota|RequestTime"
    r"|Expired ?Token|token (?:has )?expired"
)
"""A refusal that is about this moment, whatever its status."""
PASSING_STATUS = frozenset({408, 409, 421, 423, 425, 429})

TOOL = re.compile(
    r"(?<![\w./-])(?:nvcc|[Nn]inja|gcc|[gc]\+\+|cc1plus|ptxas|clang(?:\+\+)?|cmake|hipcc|cicc)(?![\w+-])"
    r"|(?<![\w-])(?:make|ld|cc)(?:(?:\[\d+\])?: |[\"'\]]*,? (?:returned|failed|exited|not found|is not installed))"
    r"|[\"'](?:make|ld|cc)[\"']"
    r"|\bPTX\b|\b(?:C\+*|CUDA|host) compiler"
    r"|\w+\.(?:h|hpp|cuh|cu|cpp)\b: No such file|cannot find -l\w+|CUDA_HOME|CPATH"
    r"|(?:JIT|extension|kernel|op)s? (?:load\w*|build\w*|compil\w*)|[Bb]uild(?:ing)? (?:of )?extension",
)
TOOL_TYPES = ("TorchDynamoException", "CppCompileError", "CompilationError", "PTXASError", "LoweringException",
               "MissingCUDAException", "CUDAMismatchException", "CompileError", "OutOfResources",
               "CompileTimeAssertionFailure")  # fmt: skip
KILLED = re.compile(
    r"[Kk]illed|BrokenProcessPool|abruptly|SIGKILL"
    r"|signal (?:9|terminated)|exit (?:status|code) (?:-9|137)|\b-9\b|Resource temporarily"
)

MACHINE = re.compile(
    r"CUDA|[cC]uDNN|CUBLAS|NCCL|NVML|\b[Dd]rivers?\b|\bGPUs?\b|[Cc]ompute capability|\bsm_\d\d|device_count|MIG|P2P"
)
CIRCUMSTANCE = re.compile(
    r"[Cc]onnect|[Nn]etwork|[Ss]ervers?\b|[Tt]ime(?:d)?[- ]?out|[Dd]ownload|[Uu]navailable|[Tt]emporar|[Kk]illed"
    r"|[Tt]erminated|[Aa]brupt|[Cc]orrupt|[Tt]runcated|unexpectedly|[Ww]atchdog|[Hh]eartbeat|new thread|at step \d"
    r"|epoch \d|too many open"
    r"|\b(?:sockets?\b|retr(?:y|ies)|(?:un)?lock(?:ed|s)?\b|busy\b|memory\b|SIG[A-Z]{3,}|signal \d|exited\b|disk\b"
    r"|I/O\b|peers?\b|hosts?\b|address\b|ports?\b|resolve\b|SSL|HTTP|(?:died|dead|lost|gone|vanished|disappeared)\b"
    r"|crash|queue\b|quota\b|broken\b|cancel|services?\b|daemons?\b|alive\b|(?:nobody|no one|anyone) else\b)"
)
"""What a message speaks of that may be otherwise the next time."""
PASSING = re.compile(
    r"[Cc]onnect(?:ion|ing) |[Tt]imed[ -]?out|[Tt]ime-?out (?:after|while|waiting|expired|exceeded)|[Uu]navailable"
    r"|[Uu]nreachable|[Tt]emporarily|other process|[Tt]erminated|unexpectedly|[Hh]eartbeat|[Rr]etries"
    r"|not (?:respond|answer|join|appear)|no (?:answer|response)"
    r"|\b(?:busy\b|in use\b|locked by\b|(?:died|killed|exited|vanished)\b|quota\b|I/O\b|[Tt]ry again)"
)
"""The part of it that is never a property of what was asked for, not even where a value or an index is wrong."""
ADVICE = re.compile(
    r"\b(?:Please|If (?:you|this|the)|See|Try|Consider|Make sure|Alternatively|You (?:can|may|might)|For (?:more"
    r"|debugging)|Visit|Search for|This (?:may|might|could|usually|is usually))\b.*?(?:\.\s|\n|$)"
)
"""Sentences for the reader, which name what has not happened."""
DEMAND = re.compile(
    r"\b(?:must|should|needs? to|ha(?:s|ve) to|requires?d?|expect(?:s|ed)|only support(?:s|ed)?|forgot|not both"
    r"|either .{1,40} or|mutually exclusive|did you mean|make sure|got an?|but got|, got"
    r"|could(?:n't| not) (?:find|cast|convert|infer|determine)"
    r"|(?:is|are) not (?:supported|allowed|compatible|defined|implemented|valid|recogni[sz]ed|available|installed"
    r"|registered|divisible|permitted|set|found|a )"
    r"|not (?:supported|implemented|allowed|divisible|compatible|recogni[sz]ed|understood)"
    r"|d(?:o|oes|id)(?:n't| not) (?:support|match|have|exist|require|accept|divide)"
    r"|can(?:'t|not) (?:use|combine|mix|cast|convert|find|set|pickle|infer|determine|specify|access|load)"
    r"|cannot be (?:used|combined|specified|both|None|negative|zero)"
    r"|please (?:set|specify|use|provide|pass|install|upgrade|update|check)"
    r"|no (?:attribute|module|package|file|field|key|parameter|option|argument|backend|operator|implementation|kernel"
    r"|config\w*)|no such|no longer|already (?:exists|registered|defined)"
    r"|unsupported|non[- ]?supported|unconvertible|unknown(?! error)|unrecogni[sz]ed|unexpected(?! error)|invalid"
    r"|illegal|incompatible|mismatch|missing|undefined|duplicate|ambiguous|deprecated|removed|conflict\w*|empty"
    r"|out of (?:range|bounds)|exceeds?"
    r"|(?:greater|less|larger|smaller) than|too (?:small|large|long|short|few|many|old|new|low|high))\b",
    re.IGNORECASE,
)
"""The grammar of a demand on the caller: what must hold and does not will not hold the next time either."""

TENSORS = re.compile(
    r"[Tt]ensors?\b|\bdtypes?\b|autograd|gradient computation|in-?place|backward\(?|requires_grad|\bstrides?\b"
    r"|\bshapes?\b"
    r"|dimensions?\b|\bmat\d\b|multiplied|embedding|contiguous|leaf variable|computation(?:al)? graph"
)
"""What torch's operators complain of."""

OPERANDS = _words(
    r"(?:same|different|two) devices?|DTensors?|requires?[ _]grad|grad_fn"
    r"|leaf variables?|in-?place operation|inference tensors?"
)
"""What a tensor is by the program alone; its values, shape and type may follow from data."""

NAMED = _words(r"globals?|class(?:es)?|functions?|object arrays?")
BARRED = _words(
    r"unsupported|unrecogni[sz]ed|forbidden|disallowed|blocked|allowlisted|allow_pickle\w*"
    r"|not (?:an? )?(?:allowed|permitted|trusted|safe)"
)
"""What a reader that is careful by its settings says of the names in a file."""

CORRUPT = ("UnpicklingError", "EOFError", "BadZipFile", "SafetensorError", "LZMAError", "BadGzipFile", "error")
UNREADABLE = re.compile(
    r"[Cc]orrupt|[Tt]runcat|magic number|[Uu]nexpected (?:EOF|end)|central directory|[Ii]ncomplete|[Cc]hecksum"
    r"|(?:hash|digest|CRC\w*|size) (?:mismatch|differs|does not match)|invalid (?:header|load key|data)"
    r"|bad (?:zip|magic)|[Ii]nvalid(?:Header|Tensor|Offset)|HeaderTooLarge|MetadataIncomplete|wrong size"
    r"|file signature not found|DATA_LOSS|[Uu]nknown frame|[Ii]ncorrect (?:header|data) check|[Bb]ad CRC"
    r"|(?:too|file) short|not a (?:zip|gzip|tar|HDF5) file|Not a gzipped|(?:is|was) empty|premature|all zeros"
    r"|zero bytes|(?:is|has|of) 0 bytes"
)
DIFFERS = re.compile(r"mismatch|does(?:n't| not) match|missing|differs?\b|instead of|[Ee]xpected|not found|size of")
RESUMING = re.compile(r"resum|restor|checkpoint|ckpt", re.IGNORECASE)
CHECKPOINT = re.compile(
    r"checkpoint|ckpt|global_step\d|optim(?:izer)?_states|model_states|\.distcp|\.safetensors|zero_pp_rank"
    r"|state[_ ]dict",
    re.IGNORECASE,
)


def near(first: re.Pattern[str], second: re.Pattern[str], text: str, reach: int = 90) -> bool:
    """Whether words of both stand within so many characters of each other."""
    here = [found.start() for found in first.finditer(text)]
    return bool(here) and any(abs(found.start() - at) <= reach for found in second.finditer(text) for at in here)


def without_quotations(text: str) -> str:
    """The text without quoted words that sound like a value which is not finite: those are names, or were given."""
    return _QUOTED.sub(lambda quoted: "''" if NOT_FINITE.search(quoted[0]) else quoted[0], text)


def not_finite(text: str) -> bool:
    """Whether the text says that a loss, a gradient or another value of training is not finite."""
    return near(NOT_FINITE, TRAINED_VALUE, text) and not near(NOT_FINITE, DATA_VALUE, text, 24)


def lacks_device_memory(text: str) -> bool:
    """Whether the text says, with sizes, that a device has less memory than is wanted."""
    return near(DEVICE_MEMORY, SHORT, text) and near(DEVICE_MEMORY, SIZE, text)


def breaks_off(text: str) -> bool:
    """Whether the text says that the program ends now."""
    return bool(BROKE_OFF.search(text))


def waited_for_others(text: str) -> bool:
    """Whether the text says that a rank waited in vain for the others, or is the dump of one that was stuck."""
    return bool(DUMP.match(text)) or (near(WAITED, TOGETHER, text, 160) and not MEETING.search(text))


def of_circumstances(text: str) -> bool:
    """Whether the text speaks of what may be otherwise the next time."""
    return bool(CIRCUMSTANCE.search(text)) and bool(CIRCUMSTANCE.search(ADVICE.sub("", text)))
