"""What an errno of Linux says about who is at fault. Values only, and how to find an errno in a text. Pure.

The numbers and words are those of Linux's `asm-generic/errno.h` and glibc, wherever this program itself runs.
"""

from __future__ import annotations

import re
from enum import Enum


class Fault(Enum):
    """Who is at fault when a system call fails so."""

    STORAGE = "the file system or what is below it"
    MEMORY = "the host's memory"
    NETWORK = "a connection or the other end of it"
    LIMIT = "a limit of processes, files or locks that others use too"
    REQUEST = "what was asked for: a path, a right, an argument"


_STORAGE = {
    5: "Input/output error",
    6: "No such device or address",
    19: "No such device",
    27: "File too large",
    28: "No space left on device",
    30: "Read-only file system",
    31: "Too many links",
    37: "No locks available",
    61: "No data available",
    67: "Link has been severed",
    70: "Communication error on send",
    71: "Protocol error",
    74: "Bad message",
    107: "Transport endpoint is not connected",
    108: "Cannot send after transport endpoint shutdown",
    112: "Host is down",
    116: "Stale file handle",
    117: "Structure needs cleaning",
    121: "Remote I/O error",
    122: "Disk quota exceeded",
    123: "No medium found",
    124: "Wrong medium type",
    126: "Required key not available",
    127: "Key has expired",
    128: "Key has been revoked",
    129: "Key was rejected by service",
    131: "State not recoverable",
}
_MEMORY = {12: "Cannot allocate memory"}
_NETWORK = {
    32: "Broken pipe",
    98: "Address already in use",
    99: "Cannot assign requested address",
    100: "Network is down",
    101: "Network is unreachable",
    102: "Network dropped connection on reset",
    103: "Software caused connection abort",
    104: "Connection reset by peer",
    110: "Connection timed out",
    111: "Connection refused",
    113: "No route to host",
}
_LIMIT = {
    4: "Interrupted system call",
    10: "No child processes",
    11: "Resource temporarily unavailable",
    16: "Device or resource busy",
    23: "Too many open files in system",
    24: "Too many open files",
    26: "Text file busy",
    35: "Resource deadlock avoided",
    39: "Directory not empty",
    62: "Timer expired",
    105: "No buffer space available",
}
_REQUEST = {
    1: "Operation not permitted",
    2: "No such file or directory",
    7: "Argument list too long",
    8: "Exec format error",
    13: "Permission denied",
    17: "File exists",
    18: "Invalid cross-device link",
    20: "Not a directory",
    21: "Is a directory",
    22: "Invalid argument",
    36: "File name too long",
    38: "Function not implemented",
    40: "Too many levels of symbolic links",
    95: "Operation not supported",
}

FAULTS = {
    number: fault
    for fault, table in (
        (Fault.STORAGE, _STORAGE),
        (Fault.MEMORY, _MEMORY),
        (Fault.NETWORK, _NETWORK),
        (Fault.LIMIT, _LIMIT),
        (Fault.REQUEST, _REQUEST),
    )
    for number in table
}
"""errno → who is at fault; what is not here proves nothing."""
_OF_THE_KERNEL = 512
"""From here on, numbers that a kernel keeps to itself (`linux/errno.h`): a file system that lets one out is broken."""

WORDS = {**_STORAGE, **_MEMORY, **_NETWORK, **_LIMIT, **_REQUEST}
"""errno → glibc's words for it."""

OF_SOCKETS = frozenset({67, 70, 71, 107, 110, 112})
OF_FILES = OF_SOCKETS | {6, 19, 61, 74}
"""Said of sockets or devices too: about storage only where a file was being used."""

_SAID = re.compile(r"\b[Ee]rrno:?(?: ?= ?| )(\d{1,3})\b|\(os error (\d{1,3})\)|\bcode: (\d{1,3}), kind: ")
_NUMBERS = {text: number for number, text in WORDS.items()}
_WORDS = re.compile("|".join(map(re.escape, sorted(_NUMBERS, reverse=True))))
_SYMBOLS = {
    "EIO": 5, "EAGAIN": 11, "ENOMEM": 12, "EBUSY": 16, "ENFILE": 23, "EMFILE": 24, "ENOSPC": 28, "EROFS": 30,
    "ENOLCK": 37, "ECONNRESET": 104, "ESHUTDOWN": 108, "ETIMEDOUT": 110, "ECONNREFUSED": 111, "EHOSTUNREACH": 113,
    "ESTALE": 116, "EUCLEAN": 117, "EREMOTEIO": 121, "EDQUOT": 122,
}  # fmt: skip
_SYMBOL = re.compile(rf"\b(?:{'|'.join(_SYMBOLS)})\b")
_OTHER_WORDS = {
    5: "input/output error|e/a[- ]fehler|erreur d'entrée/sortie|error de entrada/salida|errore di input/output"
    "|入出力エラー|输入/输出错误",
    28: "no space left|(?:not enough|insufficient|out of) (?:free )?(?:disk|storage) space"
    "|(?:disk|file ?system|volume) (?:is )?full|kein speicherplatz|aucun espace disponible|no queda espacio"
    "|spazio esaurito|não há espaço|на устройстве не осталось"
    "|デバイスに空き領域がありません|设备上没有空间|장치에 남은 공간이",
    30: "read-?only file ?system|nur lesbares dateisystem|système de fichiers accessible en lecture seulement"
    "|sistema de ficheros de sólo lectura|只读文件系统|読み込み専用ファイルシステム",
    116: "stale (?:nfs )?file handle|veraltete dateizugriffsnummer|descripteur de fichier périmé|过旧的文件控制柄",
    122: "disk quota exceeded|plattenkontingent .{0,20}überschritten|débordement du quota|se ha excedido la cuota"
    "|超出磁盘限额|ディスク使用量制限を超過|квота .{0,20}превышена",
}
"""As languages, libraries and older systems word what only files can cause; in lower case."""
_OTHERS = re.compile("|".join(f"(?P<_{number}>{words})" for number, words in _OTHER_WORDS.items()))


def fault(number: int, about_files: bool) -> Fault | None:
    """Who is at fault by an errno, where a file was being used or not; None if it proves nothing."""
    if number in OF_FILES and not about_files:
        return Fault.NETWORK if number in OF_SOCKETS else None
    if about_files and (number in OF_FILES or number >= _OF_THE_KERNEL):
        return Fault.STORAGE
    return FAULTS.get(number)


def in_other_words(text: str) -> int | None:
    """The errno of storage that a line words in a language or a way of its own; None for none."""
    other = _OTHERS.search(text.lower())
    return int(other.lastgroup[1:]) if other and other.lastgroup else None


def find(text: str) -> int | None:
    """The errno that an error's text names, by number, by symbol or in words; None if it names none."""
    if said := [next(group for group in found if group) for found in _SAID.findall(text)]:
        return int(said[-1])  # a library that wraps an errno in another quotes the first one's
    if words := _WORDS.search(text):
        return _NUMBERS[words[0]]
    if symbol := _SYMBOL.search(text):
        return _SYMBOLS[symbol[0]]
    return in_other_words(text)
