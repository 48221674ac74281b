"""The cache on disk: made once, never served damaged, and safe for two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from driftgate import store
from driftgate.outcome import DriftgateError, UsageError


class Maker:
    """Makes a file of known content and counts how often it had to."""

    def __init__(self, content: bytes = b"content of the entry") -> None:
        self.content = content
        self.count = 0

    def __call__(self, path: Path) -> None:
        self.count += 1
        path.write_bytes(self.content)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRIFTGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def test_an_entry_is_made_once(cache: Path) -> None:
    make = Maker()
    first, second = store.fetch("libraries", "a.so", make), store.fetch("libraries", "a.so", make)
    assert first == second == cache / "libraries" / "a.so"
    assert (first.read_bytes(), make.count) == (make.content, 1)
    assert entries(cache) == ["libraries/a.so", "libraries/a.so.sha256"]  # and nothing half-done


def test_entries_of_other_names_and_folders_are_apart(cache: Path) -> None:
    makers = [Maker(b"1"), Maker(b"2"), Maker(b"3")]
    places = [("x", "a"), ("x", "b"), ("y", "a")]
    paths = [store.fetch(*place, make) for place, make in zip(places, makers, strict=True)]
    assert [path.read_bytes() for path in paths] == [b"1", b"2", b"3"]


DAMAGE = {
    "a changed byte": lambda file, note: file.write_bytes(b"Content of the entry"),
    "a truncated file": lambda file, note: file.write_bytes(b"content of"),
    "an empty file": lambda file, note: file.write_bytes(b""),
    "a longer file": lambda file, note: file.write_bytes(b"content of the entry!"),
    "no file": lambda file, note: file.unlink(),
    "no note": lambda file, note: note.unlink(),
    "an empty note": lambda file, note: note.write_text(""),
    "another note": lambda file, note: note.write_text("0" * 64),
    "a cut note": lambda file, note: note.write_text(note.read_text()[:32]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_made_again(cache: Path, damage) -> None:
    make = Maker()
    path = store.fetch("libraries", "a.so", make)
    damage(path, path.with_name("a.so.sha256"))
    assert store.fetch("libraries", "a.so", make).read_bytes() == make.content
    assert make.count == 2
    store.fetch("libraries", "a.so", make)
    assert make.count == 2  # it is whole again


def test_a_maker_that_fails_leaves_nothing_to_be_served(cache: Path) -> None:
    def half(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("compiler gave up")

    with pytest.raises(RuntimeError, match="compiler gave up"):
        store.fetch("libraries", "a.so", half)
    assert entries(cache) == []
    make = Maker()
    assert store.fetch("libraries", "a.so", make).read_bytes() == make.content


def test_a_maker_that_fails_leaves_the_good_entry_alone(cache: Path) -> None:
    path = store.fetch("libraries", "a.so", Maker())
    path.with_name("a.so.sha256").unlink()
    with pytest.raises(ZeroDivisionError):
        store.fetch("libraries", "a.so", lambda _: 1 / 0)
    assert path.read_bytes() == Maker().content


def test_an_entry_is_never_seen_half_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its two renames, a process leaves a file without a note: made again, not trusted."""
    replace, moved = os.replace, []

    def killed_after_the_first(source: Path, target: Path) -> None:
        moved.append(Path(target).name)
        if len(moved) > 1:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed_after_the_first)
    with pytest.raises(KeyboardInterrupt):
        store.fetch("libraries", "a.so", Maker())
    monkeypatch.undo()
    monkeypatch.setenv("DRIFTGATE_CACHE", str(cache))
    assert moved == ["a.so", "a.so.sha256"]
    make = Maker()
    store.fetch("libraries", "a.so", make)
    assert make.count == 1


WORKER = """
import os, sys, time
from pathlib import Path
from driftgate import store

meeting, name = Path(sys.argv[1]), sys.argv[2]

def make(path):
    # Both processes are in here before either finishes.
    (meeting / name).touch()
    until = time.monotonic() + 20
    while len(os.listdir(meeting)) < 2 and time.monotonic() < until:
        time.sleep(0.005)
    assert len(os.listdir(meeting)) == 2, "the other process did not come"
    path.write_bytes(b"entry" * 10000)

path = store.fetch("libraries", "a.so", make)
print(len(path.read_bytes()))
"""


def test_two_processes_may_make_the_same_entry_at_once(cache: Path, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    running = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(meeting), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said == ["50000", "50000"]
    assert entries(cache) == ["libraries/a.so", "libraries/a.so.sha256"]
    make = Maker()
    assert len(store.fetch("libraries", "a.so", make).read_bytes()) == 50000
    assert make.count == 0


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_cache_that_cannot_be_written_is_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DRIFTGATE_CACHE", str(tmp_path / "file" / below))
    make = Maker()
    with pytest.raises(
        UsageError, match=r"^the cache .*file.* cannot be written \(.+\); set DRIFTGATE_CACHE$"
    ) as caught:
        store.fetch("libraries", "a.so", make)
    assert "\n" not in str(caught.value)
    assert make.count == 0  # before any time is spent


def test_without_a_variable_the_cache_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIFTGATE_CACHE", raising=False)
    assert store.root() == user_cache_path("driftgate")
    monkeypatch.setenv("DRIFTGATE_CACHE", "")
    assert store.root() == user_cache_path("driftgate")


def test_keys_depend_on_every_part_and_their_order() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("abc",), ("ab", "c", ""), ("",), (), ('ab", "c',)]
    assert len({store.key(*p) for p in parts}) == len(parts)
    assert store.key("ab", "c") == store.key("ab", "c")
    assert len(store.key("x" * 10**6)) == 40


def test_a_maker_that_finds_no_compiler_is_not_a_cache_that_cannot_be_written(cache: Path) -> None:
    def make(path: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory", "clang")

    with pytest.raises((DriftgateError, OSError)) as caught:
        store.fetch("libraries", "a.so", make)
    assert "cannot be written" not in str(caught.value)
