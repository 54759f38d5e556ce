"""Training speed on one GPU: the built-in trainer beside other ways to train the same model on the same tokens.

    python benchmarks/train [--out FILE] [--overhead-out FILE] [--works A,B] [--variants A,B] [--repeats N]

ours           through `campaign submit`, with a metric line every step and telemetry; figures from the store
ours_off       as ours, with next to no lines and without telemetry: what these cost
plain_compile  a plain PyTorch loop with torch.compile, autocast and fused AdamW: the yardstick
hf_trainer     the Hugging Face Trainer with DeepSpeed
tutorial       DeepSpeed as its tutorials show it: eager attention, the loss read every step

Each repeat of a variant is a process of its own, and all variants have their first repeat before any has its second.
What is known is written after each process; one that fails or takes too long is an error in its row. `--resume` goes on
where an earlier call with the same flags on the same machine ended. Without a GPU, or with `--model-scale tiny`, the
models are tiny: that shows that the script works, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dscampaign.benchmarks.shared.results import REPOSITORY, commit_id, write_json

from .table import overheads, page, row, run_document, with_ratios
from .work import SCALES, VARIANTS, WORKS, Request, Work, scaled

GRACE_S = 40.0
"""What a child that is asked to end has for it: `ours` then cancels its campaign."""
ERROR_LINES = 15
RANK = re.compile(r"^\[rank\d+\]: ")
"""What PyTorch puts before the lines of an error."""


@dataclass(frozen=True)
class Settings:
    """What is measured and how, see the flags.

    Attributes:
        facts: what every row says of the machine, the software and these settings.
    """

    works: Sequence[Work]
    variants: Sequence[str]
    steps: int
    warmup: int
    repeats: int
    compile: bool
    device: str
    text: Path
    tokenizer: str
    timeout_s: float
    stop_after_s: float
    facts: Mapping[str, Any]


@dataclass
class Results:
    """All repeats so far, and the files that they are in.

    Attributes:
        runs: of each work and variant.
    """

    settings: Settings
    out: Path | None
    overhead_out: Path | None
    runs: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)

    def resume(self) -> None:
        """Takes up what an earlier call has written; what failed then is tried again."""
        for old in json.loads(self.out.read_text()) if self.out and self.out.exists() else ():
            if differs := [name for name, value in self.settings.facts.items() if old.get(name) != value]:
                sys.exit(f"--resume: {self.out} was measured with another {', '.join(differs)}; choose another file")
            self.runs[old["work"], old["variant"]] = [run for run in old["runs"] if "error" not in run]

    def has(self, work: Work, variant: str, repeat: int) -> bool:
        """Whether this repeat is done."""
        return any(run["repeat"] == repeat for run in self.runs.get((work.name, variant), ()))

    def add(self, work: Work, variant: str, run: dict[str, Any]) -> None:
        """Adds a repeat and writes the files."""
        self.runs.setdefault((work.name, variant), []).append(run)
        self.write()

    def rows(self) -> list[dict[str, Any]]:
        """One row for each work and variant that has been tried."""
        facts, runs = self.settings.facts, self.runs
        works = [scaled(work, facts["settings"]["scale"]) for work in WORKS.values()]
        tried = [(work, variant) for work in works for variant in VARIANTS if runs.get((work.name, variant))]
        rows = [row(work, variant, runs[work.name, variant], facts["device"]) for work, variant in tried]
        return [{**each, **facts} for each in with_ratios(rows)]

    def write(self) -> None:
        """Both files, each whole or not at all."""
        rows = self.rows()
        write_json(self.out, rows)
        write_json(self.overhead_out, [{**each, **self.settings.facts} for each in overheads(rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the flags say; 1 if nothing could be measured."""
    options = _parser().parse_args(arguments)
    if options.list:
        _print_list()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the child ends too
    settings = _settings(options)
    results = Results(settings, options.out, options.overhead_out)
    if options.resume:
        results.resume()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.work or Path(temporary)).resolve()
        measure(settings, results, folder)
    rows = results.rows()
    print("\n" + page(rows, overheads(rows)))
    return 0 if any(each["repeats"] for each in rows) else 1


def measure(settings: Settings, results: Results, folder: Path) -> None:
    """Runs all children that are not done yet, one after another."""
    end_s = time.monotonic() + settings.stop_after_s
    folder.mkdir(parents=True, exist_ok=True)
    tokens, dtype = _prepare(settings, folder / "data")
    for work, variant, repeat in order(settings):
        if results.has(work, variant, repeat):
            continue
        if time.monotonic() > end_s:
            print(f"stopped after {settings.stop_after_s:.0f} s; --resume goes on")
            return
        child = folder / f"{work.name}-{variant}-{repeat}-{time.time_ns()}"
        child.mkdir(parents=True)
        request = Request(
            work=work,
            variant=variant,
            device=settings.device,
            steps=settings.steps,
            warmup=settings.warmup,
            compile=settings.compile,
            tokens=str(tokens),
            dtype=dtype,
            text=str(settings.text),
            tokenizer=settings.tokenizer,
            folder=str(child),
            started_s=time.time(),
        )
        run = run_child(request, repeat, settings.timeout_s)
        _say(request, run)
        results.add(work, variant, run)


def order(settings: Settings) -> Iterator[tuple[Work, str, int]]:
    """Every repeat of everything before the next; the variants backwards in every second one.

    So none of them always comes when the GPU is warmer than for another.
    """
    for repeat in range(settings.repeats):
        for work in settings.works:
            variants = settings.variants if repeat % 2 == 0 else settings.variants[::-1]
            yield from ((work, variant, repeat) for variant in variants)


def run_child(request: Request, repeat: int, timeout_s: float) -> dict[str, Any]:
    """Measures in a process of its own, and ends whatever that leaves behind. Returns a row's ``Run``."""
    folder = Path(request.folder)
    result, log = folder / "result.json", folder / "log.txt"
    (folder / "request.json").write_text(request.to_json())
    module = f"{__package__}.{VARIANTS[request.variant]}"
    command = [sys.executable, "-m", module, str(folder / "request.json"), str(result)]
    env = {**os.environ, **({"DS_ACCELERATOR": "cpu"} if request.device == "cpu" else {})}
    with log.open("wb") as lines:
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=lines, stderr=lines, start_new_session=True)
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return {"repeat": repeat, "error": f"not done after {timeout_s:.0f} s"}
    finally:
        _end(child)
    if child.returncode or not result.exists():
        return {"repeat": repeat, "error": error_text(log.read_text(errors="replace"), child.returncode)}
    return run_document(repeat, json.loads(result.read_text()))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends it and all that it has started: first it may do so itself."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)


def error_text(log: str, code: int) -> str:
    """What a failed child's log says: the last error first, then the lines before it."""
    lines = [RANK.sub("", line).rstrip() for line in log.splitlines() if line.strip()][-ERROR_LINES:]
    last = next((line for line in reversed(lines) if "Error" in line.partition(":")[0]), f"exit code {code}")
    return "\n".join([last, *lines])


# -- flags and facts -------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    parser.add_argument("--overhead-out", type=Path, help="JSON file of what reporting and telemetry cost")
    parser.add_argument("--resume", action="store_true", help="keep what --out has, and do the rest")
    parser.add_argument("--works", help="default: all; of a tiny model: the first")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="default: all")
    parser.add_argument("--steps", type=int, help="steps that are measured. Default: 100; of a tiny model: 10")
    parser.add_argument("--warmup", type=int, help="steps before them. Default: 20; of a tiny model: 3")
    parser.add_argument("--repeats", type=int, help="of every variant. Default: 3; of a tiny model: 1")
    parser.add_argument("--model-scale", choices=SCALES, help="default: full with a GPU, tiny without")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile everywhere")
    parser.add_argument("--text", type=Path, default=REPOSITORY / "examples/data/wikitext.txt", help="what is read")
    parser.add_argument("--tokenizer", default="bytes", help="a folder, or `bytes` for one token a byte, the default")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="of each process. Default: 600")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS", help="start none after it")
    parser.add_argument("--work", type=Path, help="folder for logs and campaigns; kept. Default: a temporary one")
    parser.add_argument("--commit", help="what is measured, where git cannot say it")
    parser.add_argument("--list", action="store_true", help="list works and variants")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    device = _device()
    scale = options.model_scale or ("tiny" if device == "cpu" else "full")
    usual = SCALES[scale]
    works = _chosen("--works", options.works or ",".join(usual.works), WORKS)
    steps, warmup = options.steps or usual.steps, options.warmup or usual.warmup
    facts = {
        "device": device,
        **{name: _version(name) for name in ("torch", "deepspeed", "transformers", "accelerate")},
        "python": sys.version.split()[0],
        "commit": options.commit or commit_id(),
        "settings": {"scale": scale, "steps": steps, "warmup": warmup, "compile": not options.no_compile},
    }
    return Settings(
        works=[scaled(WORKS[name], scale) for name in works],
        variants=_chosen("--variants", options.variants, VARIANTS),
        steps=steps,
        warmup=warmup,
        repeats=options.repeats or usual.repeats,
        compile=not options.no_compile,
        device="cpu" if device == "cpu" else "cuda",
        text=options.text.resolve(),
        tokenizer=str(Path(options.tokenizer).resolve()) if Path(options.tokenizer).is_dir() else options.tokenizer,
        timeout_s=options.timeout,
        stop_after_s=options.stop_after,
        facts=facts,
    )


def _chosen(flag: str, names: str, known: Mapping[str, object]) -> list[str]:
    found = names.split(",")
    if unknown := [name for name in found if name not in known]:
        sys.exit(f"{flag}: no {', '.join(unknown)}; there are {', '.join(known)}")
    return found


def _print_list() -> None:
    for work in WORKS.values():
        batch = f"micro-batch {work.micro_batch:2} x {work.seq_len:4} tokens"
        size = f"{work.model.parameters / 1e6:.0f} M parameters"
        print(f"{work.name:18} {size}, {batch}, {work.precision}, ZeRO {work.zero_stage}")
    print("variants:", ", ".join(VARIANTS))


def _prepare(settings: Settings, folder: Path) -> tuple[Path, str]:
    """Tokens of the text, made as the built-in trainer makes them: the file, and its type."""
    from dscampaign.jobs.trainer.corpus import Corpus
    from dscampaign.jobs.trainer.data import prepare_tokens

    prepared = prepare_tokens(Corpus(str(settings.text), None, None, "text"), settings.tokenizer, folder)
    return prepared / "tokens.bin", json.loads((prepared / "meta.json").read_text())["dtype"]


def _device() -> str:
    """Name of the GPU, or `cpu`; asked in another process, for this one would keep memory of the GPU."""
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')"
    return subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _say(request: Request, run: Mapping[str, Any]) -> None:
    what = f"{request.work.name:18} {request.variant:14} {time.time() - request.started_s:5.0f} s"
    figures = run["error"].partition("\n")[0] if "error" in run else f"{run['step_ms_median']:.2f} ms a step"
    print(f"{what}  {figures}", flush=True)
