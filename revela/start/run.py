"""Runs Snakemake with the options for a config."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import revela
from revela.common.errors import RevelaError, check_name
from revela.config import load_config
from revela.config.paths import made, retriever

_SNAKEFILE = Path(revela.__file__).parents[1] / "Snakefile"
_MAKES_NOTHING = (
    "dryrun", "report", "unlock", "lint", "summary", "detailed_summary", "dag", "rulegraph",
    "filegraph", "list_rules", "list_target_rules", "archive", "containerize",
    "conda_create_envs_only", "delete_all_output", "delete_temp_output", "cleanup_metadata",
)  # fmt: skip
"""Snakemake's options that print or remove something instead of running jobs."""


def _refuse(message: str) -> NoReturn:
    raise RevelaError(f"Snakemake: {message}")


def run(
    context: typer.Context,
    config: Path,
    cores: Annotated[str, typer.Option(help="CPU cores for all jobs together.")] = "all",
    verbose: Annotated[bool, typer.Option(help="Show Snakemake's full output.")] = False,
) -> None:
    """Run the pipeline of a config with Snakemake and show its tables.

    All other arguments are passed to Snakemake, such as files to make instead of everything, -n, or
    --report FILE.
    """
    from snakemake.cli import get_argument_parser, main
    from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

    from revela.config.report import LearningFigure
    from revela.report.commands import show
    from revela.report.training_figures import learning_text
    from revela.report.verdict import verdict
    from revela.start import progress

    if not (cores == "all" or (cores.isdecimal() and int(cores))):
        raise RevelaError(f"--cores {cores}: expected a number above 0, or all")
    checked = load_config(config)
    if not _SNAKEFILE.exists():
        raise RevelaError(f"{_SNAKEFILE}: no such file: run it from a checkout of the repository")
    options = ["--snakefile", os.path.relpath(_SNAKEFILE), "--configfile", str(config)]
    options += ["--replace-workflow-config", "--cores", cores, "--rerun-incomplete"]
    options += ["--rerun-triggers", "mtime", "params", "input", "--workflow-profile", "none"]
    options += ["--max-checksum-file-size", "10000000000"]  # as in the profiles
    arguments = ["--keep-going", *context.args]
    # Standard output may be piped, as that of --dag is.
    print(shlex.join(["snakemake", *options, *arguments]), file=sys.stderr)
    parser = get_argument_parser()
    vars(parser)["error"] = _refuse  # in place of a hundred lines of usage
    parsed = parser.parse_args([*options, *arguments])
    if [Path(file) for file in parsed.configfile] != [config]:
        raise RevelaError(f"--configfile {parsed.configfile[-1]}: the config is {config}")
    makes = not any(getattr(parsed, option) for option in _MAKES_NOTHING)
    if makes and not verbose:
        LoggerPluginRegistry().register_plugin("snakemake_logger_plugin_revela", progress)
        options += ["--logger", "revela"]
        os.environ["REVELA_QUIET"] = "1"  # the output of jobs is in their logs
    try:
        main([*options, *arguments])
    except SystemExit as stop:
        if stop.code:
            for line in progress.FAILED:
                print(line, file=sys.stderr)
            # Without the logger, the exception's name is not known.
            if parsed.dryrun or "MissingRuleException" in progress.ERRORS:
                files = [_SNAKEFILE, *_SNAKEFILE.parent.glob("workflow/rules/*.smk")]
                text = "".join(map(Path.read_text, files))
                rules = re.findall(r"^rule (\w+):", text, re.MULTILINE)
                for target in parsed.targets:
                    check_name(str(config), "target", target, [*checked.targets(), *rules])
            raise
    if makes:
        show([path for name in checked.tables if (path := Path(made("tables", name))).exists()])
        for name, table in checked.tables.items():
            compiled = table.compared_to and Path(made("tables", name)).exists()
            if says := verdict(checked, name) if compiled else "":
                print(f"\n{says}\n")
        drawn, trained = [], []
        for name, figure in checked.figures.items():
            if (path := Path(f"results/figures/{name}.png")).exists():
                drawn.append(path)
                if isinstance(figure, LearningFigure):
                    scores = {k: Path(v) for k, v in checked.inputs("figures", name).items()}
                    print(f"\n{learning_text(figure, scores)}\n")
        for name in checked.experiments:
            if (path := Path(retriever(name))).exists():
                trained.append(path)
            elif not parsed.targets:
                print(f"{name}: not trained, because nothing requested it: {path}")
        for kind, files in (("figures", drawn), ("retrievers", trained)):
            if files:
                print(f"{kind}:", *files)
