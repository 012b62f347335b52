"""Runs Snakemake with the options for a config."""

import os
import shlex
import sys
from pathlib import Path

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


def run(config: Path, arguments: list[str], cores: str, verbose: bool) -> None:
    """Run the workflow on a config; see `revela run`.

    Raises:
        RevelaError: the config is invalid, or this is not a checkout with a Snakefile.
        SystemExit: with Snakemake's exit code, unless that is 0.
    """
    from snakemake.cli import get_argument_parser, main
    from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

    from revela.config.report import LearningFigure
    from revela.plan import progress
    from revela.report.commands import show
    from revela.report.training_figures import learning_text

    if not (cores == "all" or (cores.isdecimal() and int(cores))):
        raise RevelaError(f"--cores {cores}: expected a number above 0, or all")
    checked = load_config(config)
    if not _SNAKEFILE.exists():
        raise RevelaError(f"{_SNAKEFILE}: no such file: run it from a checkout of the repository")
    options = ["--snakefile", os.path.relpath(_SNAKEFILE), "--configfile", str(config)]
    options += ["--replace-workflow-config", "--cores", cores, "--rerun-incomplete"]
    options += ["--rerun-triggers", "mtime", "params", "input", "--workflow-profile", "none"]
    options += ["--max-checksum-file-size", "10000000000"]  # as in the profiles
    # Standard output may be piped, as that of --dag is.
    print(shlex.join(["snakemake", *options, "--keep-going", *arguments]), file=sys.stderr)
    given = get_argument_parser().parse_args([*options, "--keep-going", *arguments])
    makes = not any(getattr(given, option) for option in _MAKES_NOTHING)
    if makes and not verbose:
        LoggerPluginRegistry().register_plugin("snakemake_logger_plugin_revela", progress)
        options += ["--logger", "revela"]
        os.environ["REVELA_QUIET"] = "1"  # the output of jobs is in their logs
    try:
        main([*options, "--keep-going", *arguments])
    except SystemExit as stop:
        if stop.code:
            print(*progress.FAILED, sep="\n", file=sys.stderr)
            for target in given.targets if "MissingRuleException" in progress.ERRORS else ():
                if "/" in target:  # others may be rules
                    check_name(str(config), "target", target, checked.targets())
            raise
    if makes:
        show([path for name in checked.tables if (path := Path(made("tables", name))).exists()])
        drawn = {name: f"results/figures/{name}.png" for name in checked.figures}
        drawn = {name: path for name, path in drawn.items() if Path(path).exists()}
        for name in drawn:
            if isinstance(figure := checked.figures[name], LearningFigure):
                scores = {k: Path(v) for k, v in checked.inputs("figures", name).items()}
                print(f"\n{learning_text(figure, scores)}\n")
        trained = [retriever(one) for one in checked.experiments if Path(retriever(one)).exists()]
        if not given.targets:
            for name in checked.experiments:
                if not Path(target := retriever(name)).exists():
                    print(f"{name}: not trained, because nothing requested it: {target}")
        for kind, files in (("figures", list(drawn.values())), ("retrievers", trained)):
            if files:
                print(f"{kind}:", *files)
