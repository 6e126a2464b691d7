"""Options that several commands take, grouped as one argument of theirs."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import typer

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

    @functools.wraps(command)
    def called(**values: Any) -> None:
        for name, kind in grouped.items():
            fields = inspect.signature(kind).parameters
            values[name] = kind(**{field: values.pop(field) for field in fields})
        command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called
