"""What all commands have: options that several of them take as one argument, and paths that are not empty."""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import typer

from streaming.cli.cluster import failures_explained

Command = TypeVar("Command", bound=Callable[..., Any])


class Options:
    """Options that several commands take, as one argument of theirs. A subclass is a dataclass, a field for each."""


class Commands(typer.Typer):
    """Takes commands with arguments that are `Options`."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        add = super().command(name, **settings)

        def added(command: Command) -> Command:
            add(_with_single_options(command))
            return command

        return added


def _with_single_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the fields of its `Options` in their place, which Typer reads from its signature."""
    hints = get_type_hints(command, include_extras=True)
    grouped = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, Options)}
    parameters = list[inspect.Parameter]()
    for name, parameter in inspect.signature(command).parameters.items():
        single = inspect.signature(grouped[name]).parameters.values() if name in grouped else [parameter]
        types = get_type_hints(grouped[name], include_extras=True) if name in grouped else hints
        parameters += [
            option.replace(annotation=types[option.name], kind=inspect.Parameter.KEYWORD_ONLY) for option in single
        ]
    _refuse_empty_paths(parameter.annotation for parameter in parameters)

    @functools.wraps(command)
    def called(**values: Any) -> None:
        for name, kind in grouped.items():
            fields = inspect.signature(kind).parameters
            values[name] = kind(**{field: values.pop(field) for field in fields})
        with failures_explained():
            command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _refuse_empty_paths(annotations: Iterable[Any]) -> None:
    for annotation in annotations:
        kind, *typer_info = get_args(annotation) or (annotation,)
        if _is_path(kind):
            typer_info[0].parser = path_of


def _is_path(kind: Any) -> bool:
    """Also `Path | None` and lists of paths."""
    return kind is Path or any(_is_path(part) for part in get_args(kind))


def path_of(text: str) -> Path:
    """The path that an argument names. Raises BadParameter for an empty one.

    `Path("")` is the working folder: `policy apply "$UNSET" --prune` would replace what is live by what is there.
    """
    if not text:
        raise typer.BadParameter("an empty path names no file and no folder")
    return Path(text)
