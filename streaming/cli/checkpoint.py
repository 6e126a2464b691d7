"""`lockkeeper checkpoint`: what to do with the checkpoints of a job that does not run."""

from typing import Annotated

import typer

from streaming.cli.app import Config, Failure, Json, checkpoint_app, remark, settings_of, tell, tell_json


@checkpoint_app.command("archive")
def archive_command(
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(metavar="CHECKPOINT", help="By default those of the job and of its monitor."),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Move checkpoints away, to CHECKPOINT.archived-TIME beside them, so that the job starts without them.

    It then starts from the offsets that its consumer group has committed, where no request is lost or decided twice;
    on another Kafka cluster, from the first offsets. Without its checkpoint the monitor may repeat or miss alerts.

    Exit code 1: a job uses one of them, or one is not on a local disk: then nothing is moved, and the error says how
    to move it.

    \b
    Examples:
      lockkeeper checkpoint archive --config lockkeeper.yaml
      lockkeeper checkpoint archive ./checkpoint-monitor
    """
    from streaming.runtime.checkpoints import CheckpointInUse, archive, archived_name, checkpoints_of, local_path

    places = checkpoints or list(checkpoints_of(settings_of(config)))
    folders = [folder for folder in map(local_path, places) if folder is not None]
    if len(folders) < len(places):
        moves = "; ".join(f"hadoop fs -mv {place} {archived_name(place)}" for place in places)
        raise Failure(
            f"{', '.join(places)}: on another file system than the local disk. Stop the job, and move them with a "
            f"client of that file system, such as: {moves}"
        )
    try:
        moved = archive(folders)
    except CheckpointInUse as error:
        raise Failure(f"{error}; nothing was moved") from None
    except OSError as error:
        raise Failure(f"{error.filename}: cannot be moved: {error.strerror}") from error
    _show({str(folder): str(to) for folder, to in moved.items()}, places, as_json)


def _show(moved: dict[str, str], places: list[str], as_json: bool) -> None:
    if as_json:
        tell_json(moved)
        return
    for folder, to in moved.items():
        tell(f"{folder} -> {to}")
    if not moved:
        remark(f"nothing to move: there is no {' and no '.join(places)}")
