"""Decorators that make a function, a step of the pipeline, a subcommand of `revela`.

    @step(app)
    def batch(settings: Batches, inputs: dict[str, Path], output: Output) -> Made:
        '''Group chunks into batches.'''

becomes `revela batch --settings JSON --input NAME=PATH … --output PATH`. The function itself is
unchanged, so that tests can call it directly.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from revela.common.errors import RevelaError
from revela.common.outputs import atomic_output, check_ours, write_manifest
from revela.common.versions import STAGE_VERSIONS
from revela.config.keys import print_keys
from revela.config.settings import Settings, parse_settings

Output = Annotated[Path, typer.Option("--output", help="File or folder to write.")]


def files_option(*suffixes: str) -> Any:
    """Return the option of files to write in several formats."""

    def check(files: Path | None) -> Path | None:
        if files and files.suffix not in ("", *suffixes):
            allowed = ", ".join(suffixes)
            raise RevelaError(f"--output {files}: unknown format; allowed: {allowed}")
        if files and not files.name:
            raise RevelaError(f"cannot write {files}: a folder with this name exists")
        return files

    written = "Files to write, one per format, with its suffix."
    return typer.Option("--output", help=written, callback=check)


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Made:
    """A step's report on its output.

    Attributes:
        summary: the line to print.
        facts: recorded in the manifest: counts, device, …
        inputs: files and folders read besides those of `--input`; they are hashed as well.
    """

    summary: str
    facts: Mapping[str, Any]
    inputs: Iterable[Path] = ()


def step(app: typer.Typer) -> Callable[[Function], Function]:
    """Make a function with an `output` a `command` that writes the output atomically.

    The function writes to a temporary path and returns `Made`; when it returns, the output is
    renamed and gets its manifest.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def recorded(**arguments: Any) -> None:
            output = arguments["output"]
            with atomic_output(output) as temporary:
                check_ours(output.with_suffix(".manifest.json"))
                made: Made = function(**arguments | {"output": temporary})
                if output.resolve() in [path.resolve() for path in made.inputs]:
                    raise RevelaError(f"--output {output}: is read by this step")
            settings = {
                name: value.model_dump(mode="json")
                for name, value in arguments.items()
                if isinstance(value, Settings)
            }
            write_manifest(
                output,
                settings.get("settings", settings),
                [*arguments.get("inputs", {}).values(), *made.inputs],
                stage_version=STAGE_VERSIONS[function.__name__],
                **made.facts,
            )
            print(made.summary)

        command(app)(recorded)
        return function

    return decorate


def command(app: typer.Typer) -> Callable[[Function], Function]:
    """Make a function a subcommand of `app`.

    A parameter typed by settings, or by a list of them, is an option that takes JSON, and `--help`
    lists its keys;
    `inputs` are the files of `--input NAME=PATH`, by name; typer reads all other parameters.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        kinds = {
            name: _each(signature.parameters[name].annotation)
            for name, hint in get_type_hints(function).items()
            if name != "return" and _is_settings(hint)
        }

        @functools.wraps(function)
        def parsed(**arguments: Any) -> None:
            inputs = arguments.get("inputs", [])
            if "inputs" in arguments:
                arguments["inputs"] = _Inputs(inputs)
                if len(arguments["inputs"]) < len(inputs):
                    raise RevelaError("--input: a name is given twice")
            paths = [path for path in arguments.values() if isinstance(path, Path)]
            paths += {path: None for _, path in inputs}
            resolved = [path.resolve() for path in paths]
            for path, place in zip(paths, resolved, strict=True):
                if resolved.count(place) > 1:
                    raise RevelaError(f"{path}: is given twice, but an output is a file of its own")
            function(**arguments)

        class WithKeys(TyperCommand):
            def format_help(self, *context: Any) -> None:
                super().format_help(*context)
                for name, kind in kinds.items():
                    print_keys(f"--{name}", kind)

        options = [_option(parameter, kinds) for parameter in signature.parameters.values()]
        vars(parsed)["__signature__"] = signature.replace(parameters=options)
        app.command(cls=WithKeys)(parsed)
        return function

    return decorate


def _each(hint: Any) -> Any:
    """Return the type of a list's items, or that of another parameter itself."""
    return get_args(hint)[0] if get_origin(hint) is list else hint


def _is_settings(hint: Any) -> bool:
    kinds = get_args(_each(hint)) or (_each(hint),)
    return all(isinstance(kind, type) and issubclass(kind, Settings) for kind in kinds)


def _option(parameter: inspect.Parameter, kinds: Mapping[str, Any]) -> inspect.Parameter:
    """Return the parameter as typer reads it from the command line."""
    name = parameter.name
    if name in kinds:
        option = typer.Option(
            metavar="JSON",
            help="Settings; their keys are listed below.",
            parser=lambda text: parse_settings(kinds[name], text, f"--{name}"),
        )
        several = get_origin(parameter.annotation) is list
        return parameter.replace(annotation=Annotated[list[Any] if several else Any, option])
    if name == "inputs":
        option = typer.Option(
            "--input",
            metavar="NAME=PATH",
            default_factory=list,
            show_default=False,
            help="An input of the step; repeat for each.",
            parser=_parse_input,
        )
        return parameter.replace(annotation=Annotated[list[Any], option])
    return parameter


def _parse_input(item: str) -> tuple[str, Path]:
    name, equals, path = item.partition("=")
    if not equals:
        raise RevelaError(f"--input {item!r}: expected NAME=PATH")
    if not Path(path).exists():
        raise RevelaError(f"--input {item!r}: no such file")
    return name, Path(path)


class _Inputs(dict[str, Path]):
    """Files by name; looking up one that was not given is an error."""

    def __missing__(self, name: str) -> Path:
        raise RevelaError(f"--input {name}=PATH is missing")
