"""The content-addressed cache on disk: files that can be made again, kept under the key of what they are made from."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from driftgate.outcome import InfraError, UsageError


def root() -> Path:
    """``$DRIFTGATE_CACHE``, or the user's cache folder."""
    if given := os.environ.get("DRIFTGATE_CACHE"):
        # Absolute: the processes that open what is cached run elsewhere.
        return Path(given).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("driftgate")


def key(*parts: str) -> str:
    """A key for what is made from ``parts``, in that order."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def fetch(folder: str, name: str, make: Callable[[Path], None]) -> Path:
    """The file ``name`` of ``folder`` in the cache, made by ``make(path)`` if it is missing or damaged.

    A file counts as damaged when its bytes are not those noted beside it. It is written under a name of its own and
    then moved into place, so that two processes may make the same entry: the later one wins, with the same content.
    Raises UsageError if the cache cannot be written, InfraError if ``make`` meets an error of the system.
    """
    path = root() / folder / name
    if _intact(path):
        return path
    with _scratch(path.parent) as scratch:
        made, note = scratch / name, scratch / "note"
        try:
            make(made)
        except OSError as error:
            raise InfraError(f"{name} cannot be made: {error}") from error
        note.write_text(_digest(made))
        # The file first: a file without its note is made again, a note without its file as well.
        made.replace(path)
        note.replace(_note(path))
    return path


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the entries, on the same disk, so that moving a file into place is one step."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".making-")
    except OSError as error:
        raise UsageError(f"the cache {root()} cannot be written ({error.strerror}); set DRIFTGATE_CACHE") from error
    with scratch:
        yield Path(scratch.name)


def _intact(path: Path) -> bool:
    try:
        return _note(path).read_text() == _digest(path)
    except OSError:
        return False


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
