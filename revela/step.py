"""A step of the pipeline is a function; a decorator makes it a subcommand of `revela`.

    @step(app)
    def batch(settings: Batches, inputs: dict[str, Path], output: Output) -> Made:
        '''Group chunks into batches.'''

becomes `revela batch --settings JSON --input NAME=PATH … --output PATH`. The function itself stays
as it is, so that tests call it without the command line.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from revela.common.errors import RevelaError
from revela.common.outputs import atomic_output, write_manifest
from revela.common.versions import STAGE_VERSIONS
from revela.config.keys import print_keys
from revela.config.steps import Settings, parse_settings

Output = Annotated[Path, typer.Option("--output", help="File or folder to write.")]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Made:
    """What a step reports about its output.

    Attributes:
        summary: the line to print.
        facts: what the manifest records: counts, device, …
        inputs: files and folders that it read besides those of `--input`, for their hashes.
    """

    summary: str
    facts: Mapping[str, Any]
    inputs: Iterable[Path] = ()


def step(app: typer.Typer) -> Callable[[Function], Function]:
    """Make a function with an `output` a `command` that leaves the output whole or not at all.

    The function writes to a temporary path and returns `Made`; the output gets its name and its
    manifest when the function is done.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def recorded(**given: Any) -> None:
            output = given["output"]
            with atomic_output(output) as temporary:
                made: Made = function(**given | {"output": temporary})
            settings = {
                name: value.model_dump(mode="json")
                for name, value in given.items()
                if isinstance(value, Settings)
            }
            write_manifest(
                output,
                settings.get("settings", settings),
                [*given.get("inputs", {}).values(), *made.inputs],
                stage_version=STAGE_VERSIONS[function.__name__],
                **made.facts,
            )
            print(made.summary)

        command(app)(recorded)
        return function

    return decorate


def command(app: typer.Typer) -> Callable[[Function], Function]:
    """Make a function a subcommand of `app`.

    A parameter typed by settings is an option that takes JSON, and `--help` lists its keys;
    `inputs` are the files of `--input NAME=PATH`, by name; typer reads all other parameters.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        kinds = {
            name: signature.parameters[name].annotation
            for name, hint in get_type_hints(function).items()
            if name != "return" and _is_settings(hint)
        }

        @functools.wraps(function)
        def parsed(**given: Any) -> None:
            if "inputs" in given:
                given["inputs"] = _Inputs(given["inputs"])
            function(**given)

        class WithKeys(TyperCommand):
            def format_help(self, *arguments: Any) -> None:
                super().format_help(*arguments)
                for name, kind in kinds.items():
                    print_keys(f"--{name}", kind)

        options = [_option(parameter, kinds) for parameter in signature.parameters.values()]
        vars(parsed)["__signature__"] = signature.replace(parameters=options)
        app.command(cls=WithKeys)(parsed)
        return function

    return decorate


def _is_settings(hint: Any) -> bool:
    kinds = get_args(hint) or (hint,)
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
        return parameter.replace(annotation=Annotated[Any, option])
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
    """Files by their names; one that was not given is an error where it is looked up."""

    def __missing__(self, name: str) -> Path:
        raise RevelaError(f"--input {name}=PATH is missing")
