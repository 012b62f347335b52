"""Snakemake's progress, one line per job with the time left; its own log has the rest.

Meanwhile one more line says what is running, with the steps of trainings: the last one of a
terminal, elsewhere one a minute.
"""

import statistics
import threading
import time
from logging import WARNING, LogRecord
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text
from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from revela.config.paths import retriever
from revela.start.status import duration, last_line, reason, under_way

_LONG = ("chunk", "batch", "pair", "train", "evaluate")  # and the rules that these begin
_SILENT = {"RuleException", "MissingRuleException"}  # the summary at the end is clearer
_ENDED = "At least one job did not complete successfully"
_STOPPING = "Terminating processes on user request"
_LOCKED = (
    "revela: error: another run is making the same files in this folder; if there is none, because "
    "it was killed, the same command with --unlock removes its lock"
)

FAILED: list[str] = []
"""A line for each job that failed, to be printed last."""

ERRORS: set[str] = set()
"""The names of Snakemake's exceptions."""


class _Job(NamedTuple):
    rule: str
    name: str
    log: Path | None
    start: float
    training: Path | None  # its folder

    def steps(self, now: float) -> tuple[int, int, float] | None:
        """Return a training's step, of how many, and the seconds left; None before the first."""
        return under_way(self.training, time.time() - now + self.start) if self.training else None


class LogHandler(LogHandlerBase):
    """A logger plugin of Snakemake."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Initialise the counters and begin to show what is running."""
        self.start = time.monotonic()
        self.stopping = False
        self.planned: dict[str, int] = {}
        self.running: dict[int, _Job] = {}
        self.seconds: dict[str, list[float]] = {}  # of finished jobs by rule
        self.console = Console(stderr=True)
        self.ended = threading.Event()
        self.watching = threading.Thread(target=self._watch, daemon=True)
        self.watching.start()

    def close(self) -> None:
        """Stop showing what is running."""
        self.ended.set()
        self.watching.join()
        super().close()

    def _watch(self) -> None:
        if self.console.is_terminal:
            with Live(
                console=self.console,
                get_renderable=lambda: Text(self._under_way(), no_wrap=True, overflow="ellipsis"),
                refresh_per_second=1,
                transient=True,
            ):
                self.ended.wait()
        while not self.ended.wait(60):
            if line := self._under_way():
                self._print(line)

    def _print(self, text: str) -> None:
        """Print above the live line, without line breaks and markup."""
        self.console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)

    def _under_way(self) -> str:
        now, jobs = time.monotonic(), []
        for job in list(self.running.values()):
            if steps := job.steps(now):
                step, of, left = steps
                jobs.append(f"{job.name}: step {step} of {of}, {duration(left)} left")
            else:
                jobs.append(f"{job.name}: {duration(now - job.start)}")
        return f"{self._done()} {' | '.join(jobs)}{self._left(now)}" if jobs else ""

    def _done(self) -> str:
        done = sum(map(len, list(self.seconds.values())))
        return f"[{done}/{sum(self.planned.values())}]"

    def emit(self, record: LogRecord) -> None:
        """Print an event if it is relevant."""
        event: Any = record  # Snakemake's events have additional attributes
        match getattr(record, "event", None):
            case LogEvent.RUN_INFO:
                self.planned = {rule: n for rule, n in event.stats.items() if rule != "total"}
                self._print(f"{event.stats['total']} jobs")
            case LogEvent.JOB_INFO:
                name = " ".join([event.rule_name, *event.wildcards.values()])
                log = Path(event.log[0]) if event.log else None
                training = Path(retriever(name[6:])).parent if event.rule_name == "train" else None
                begun = time.monotonic()
                self.running[event.jobid] = _Job(event.rule_name, name, log, begun, training)
            case LogEvent.JOB_FINISHED if job := self.running.pop(event.job_id, None):
                self._finished(job)
            case LogEvent.JOB_ERROR if job := self.running.pop(event.jobid, None):
                log = job.log if job.log and job.log.exists() else None
                why = f"{reason(log)} (see {log})" if log else "no log"
                ended = "failed; jobs that do not depend on it continue"
                if self.stopping or why.startswith(("interrupted", "revela: error: stopped by")):
                    ended = "was stopped"
                if not (self.stopping and "perhaps killed" in why):
                    FAILED.append(f"{job.name}: {why}")
                self._print(f"{job.name} {ended}")
            case LogEvent.ERROR:
                ERRORS.add(event.exception)
                if event.exception not in _SILENT and _ENDED not in event.msg:
                    locked = event.exception == "LockException"
                    self._print(_LOCKED if locked else record.getMessage())
            case None if event.msg.startswith(_STOPPING):
                self.stopping = True
                self._print("stopping; the same command resumes")
            case None if event.msg == NOTHING_TO_BE_DONE_MSG or (
                record.levelno >= WARNING and "job execution failed" not in event.msg
            ):
                self._print(record.getMessage())

    def _finished(self, job: _Job) -> None:
        now = time.monotonic()
        self.seconds.setdefault(job.rule, []).append(now - job.start)
        line = f"{self._done()} {job.name}, {duration(now - job.start)}"
        if job.rule == "chunk" and job.log and job.log.exists():  # it says what it skipped
            line += f" ({last_line(job.log)})"
        self._print(line + self._left(now))

    def _left(self, now: float) -> str:
        """Estimate the time of the remaining jobs from others of the same rule.

        These are finished ones, and running trainings by the time of their steps.
        """
        running = list(self.running.values())  # another thread may change it meanwhile
        spent = left = 0.0
        unknown = False
        for rule, count in self.planned.items():
            finished = self.seconds.get(rule, [])
            elapsed = {job: now - job.start for job in running if job.rule == rule}
            steps = {job: steps[2] for job in elapsed if (steps := job.steps(now))}
            whole = finished + [elapsed[job] + steps[job] for job in steps]
            spent += sum(elapsed.values()) + sum(finished)
            unknown |= rule.startswith(_LONG) and not whole
            # Not the mean: an evaluation of BM25 takes seconds, those of encoders minutes.
            usual = statistics.median_high(whole) if whole else 0.0
            left += sum(steps.get(job, max(0.0, usual - elapsed[job])) for job in elapsed)
            left += (count - len(finished) - len(elapsed)) * usual
        if not left:
            return ""
        at_once = max(1.0, spent / (now - self.start))
        return f"; {'more than' if unknown else 'about'} {duration(left / at_once)} left"
