"""Snakemake's progress, one line per job with the time left; its own log has the rest."""

import statistics
import sys
import time
from collections import defaultdict
from logging import WARNING, LogRecord
from pathlib import Path
from typing import Any, NamedTuple

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from revela.start.status import duration, last_line, reason

_LONG = ("chunk", "batch", "pair", "train", "evaluate", "evaluate_language_model")
_SILENT = {"RuleException", "MissingRuleException"}  # the summary at the end is clearer
_ENDED = "At least one job did not complete successfully"

FAILED: list[str] = []
"""A line for each job that failed, to be printed last."""

ERRORS: set[str] = set()
"""The names of Snakemake's exceptions."""


class _Job(NamedTuple):
    rule: str
    name: str
    log: Path | None
    start: float


class LogHandler(LogHandlerBase):
    """A logger plugin of Snakemake."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Initialise the counters."""
        self.start = time.monotonic()
        self.planned: dict[str, int] = {}
        self.running: dict[int, _Job] = {}
        self.seconds: dict[str, list[float]] = defaultdict(list)  # of finished jobs by rule

    def emit(self, record: LogRecord) -> None:
        """Print an event if it is relevant."""
        event: Any = record  # Snakemake's events have additional attributes
        match getattr(record, "event", None):
            case LogEvent.RUN_INFO:
                self.planned = {rule: n for rule, n in event.stats.items() if rule != "total"}
                print(f"{event.stats['total']} jobs", file=sys.stderr)
            case LogEvent.JOB_INFO:
                name = " ".join([event.rule_name, *event.wildcards.values()])
                log = Path(event.log[0]) if event.log else None
                self.running[event.jobid] = _Job(event.rule_name, name, log, time.monotonic())
            case LogEvent.JOB_FINISHED if job := self.running.pop(event.job_id, None):
                self._finished(job)
            case LogEvent.JOB_ERROR if job := self.running.pop(event.jobid, None):
                log = job.log if job.log and job.log.exists() else None
                why = f"{reason(log)} (see {log})" if log else "no log"
                FAILED.append(f"{job.name}: {why}")
                ended = "failed; jobs that do not depend on it continue"
                if why.startswith(("interrupted", "revela: error: stopped by")):
                    ended = "was stopped"
                print(f"{job.name} {ended}", file=sys.stderr)
            case LogEvent.ERROR:
                ERRORS.add(event.exception)
                if event.exception not in _SILENT and _ENDED not in event.msg:
                    print(record.getMessage(), file=sys.stderr)
            case None if event.msg == NOTHING_TO_BE_DONE_MSG or (
                record.levelno >= WARNING and "job execution failed" not in event.msg
            ):
                print(record.getMessage(), file=sys.stderr)

    def _finished(self, job: _Job) -> None:
        now = time.monotonic()
        self.seconds[job.rule].append(now - job.start)
        done, planned = sum(map(len, self.seconds.values())), sum(self.planned.values())
        line = f"[{done}/{planned}] {job.name}, {duration(now - job.start)}"
        if job.rule == "chunk" and job.log and job.log.exists():  # it says what it skipped
            line += f" ({last_line(job.log)})"
        print(line + self._left(now), file=sys.stderr)

    def _left(self, now: float) -> str:
        """Estimate the time of the remaining jobs from finished ones of the same rule."""
        spent = left = 0.0
        for rule, count in self.planned.items():
            running = sum(now - job.start for job in self.running.values() if job.rule == rule)
            spent += running + sum(self.seconds[rule])
            if done := self.seconds[rule]:
                left += max(0.0, (count - len(done)) * statistics.mean(done) - running)
        if not left:
            return ""
        unknown = any(rule in _LONG and not self.seconds[rule] for rule in self.planned)
        at_once = max(1.0, spent / (now - self.start))
        return f"; {'more than' if unknown else 'about'} {duration(left / at_once)} left"
