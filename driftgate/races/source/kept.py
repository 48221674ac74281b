"""Whether code generation kept a kernel's barriers: the same barriers and stores, in the same loops and branches."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from driftgate.outcome import UsageError
from driftgate.races.kernel import LOCAL, SHARED, Barrier, Kernel, Load, Storage, expressions, statements, walk
from driftgate.races.source.events import Event, of_kernel, of_listing, structured
from driftgate.races.source.listing import BARRIER, Listing, SourceFinding
from driftgate.races.source.reading import read


def barriers_kept(kernel: Kernel, source: str, target: str) -> tuple[SourceFinding, ...]:
    """What ``source``, generated for ``kernel`` on a target of kind ``target``, does otherwise; empty if nothing.

    Compared are barriers, stores to shared and device memory (which array, how many bytes), the loops and branches
    around them, the sizes of the shared arrays, and, where all that agrees, which arrays are read between two barriers:
    not the values and not the indices. A store of a vector is one, also where the source writes it lane by lane.
    Raises UsageError for a source that cannot be read.
    """
    listing = read(source, target, device_name(kernel))
    names, findings = _names(kernel, listing)
    want = structured(of_kernel(kernel, names))
    have = structured(of_listing(listing))
    findings += _differences(want, have)
    return tuple(findings or _reads(kernel, names, listing))


def device_name(kernel: Kernel) -> str:
    """The name of the device function, which the generated source has as well."""
    found = re.search(r"^def (\w+)\(", kernel.script, re.MULTILINE)
    if found is None:
        raise UsageError(f"kernel {kernel.name}: its script defines no function")
    return found[1]


def _names(kernel: Kernel, listing: Listing) -> tuple[dict[Storage, str], list[SourceFinding]]:
    """The source's name of every storage: arrays are declared in the kernel's order, names get a suffix at most."""
    shared = list(dict.fromkeys(b.storage for b in kernel.buffers if b.scope == SHARED))
    names, findings = {}, []
    for scope, storages in (("global", [p.storage for p in kernel.pointers]), ("shared", shared)):
        arrays = [a for a in listing.arrays if a.scope == scope]
        for storage, array in zip(storages, arrays, strict=False):
            names[storage] = array.name
            if not re.fullmatch(rf"{re.escape(storage.name)}(_ptr)?(_\d+)?", array.name):
                text = f"line {array.line} declares {array.name} where the kernel has {storage.name}"
                findings.append(SourceFinding("declaration", text, ((array.line, array.name),)))
            elif storage.bytes is not None and storage.bytes != array.bytes:
                text = f"line {array.line} declares {array.name} with {array.bytes} bytes, the kernel {storage.bytes}"
                findings.append(SourceFinding("declaration", text, ((array.line, array.name),)))
        for storage in storages[len(arrays) :]:
            names[storage] = storage.name
            findings.append(SourceFinding("declaration", f"the source declares no {scope} array {storage.name}"))
        for array in arrays[len(storages) :]:
            text = f"line {array.line} declares {array.name}, which the kernel does not have"
            findings.append(SourceFinding("declaration", text, ((array.line, array.name),)))
    return names, findings


def _differences(want: list[Event], have: list[Event]) -> list[SourceFinding]:
    matcher = SequenceMatcher(None, [e.key for e in want], [e.key for e in have], autojunk=False)
    lost: list[int] = []
    added: list[Event] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            lost += range(a, b)
            added += have[c:d]
    findings = []
    for number in lost:
        event = want[number]
        twin = next((other for other in added if other.key == event.key), None)
        at = f"{_which(want, number)} of the kernel (lowered line {event.line})"
        if twin is None:
            findings.append(SourceFinding("missing", f"{at} is not in the source: {event.text}"))
        else:
            added.remove(twin)
            text = f"{at} stands elsewhere in the source, at line {twin.line}"
            findings.append(SourceFinding("moved", text, ((twin.line, twin.text),)))
    for event in added:
        text = f"{event.what} at line {event.line} of the source is not in the kernel: {event.text}"
        findings.append(SourceFinding("added", text, ((event.line, event.text),)))
    return findings


def _which(events: list[Event], number: int) -> str:
    """What event ``number`` is; of barriers with no event between them it could as well be another."""
    first = last = number
    while first and events[first - 1].key == "barrier" == events[number].key:
        first -= 1
    while last + 1 < len(events) and events[last + 1].key == "barrier" == events[number].key:
        last += 1
    return " or ".join(event.what for event in events[first : last + 1])


def _reads(kernel: Kernel, names: dict[Storage, str], listing: Listing) -> list[SourceFinding]:
    """Where an array is read between other barriers than in the kernel. There have to be as many barriers."""
    want: list[set[str]] = [set()]
    for stmt in statements(kernel.body):
        loads = (e for x in expressions(stmt) for e in walk(x) if isinstance(e, Load) and e.buffer.scope != LOCAL)
        want[-1] |= {names[e.buffer.storage] for e in loads}
        if isinstance(stmt, Barrier):
            want.append(set())
    memory = {a.name for a in listing.arrays if a.scope != "local"}
    have: list[set[str]] = [set()]
    for s in listing.statements:
        have[-1] |= memory & set(re.findall(r"\w+", f"{s.place} {s.value}"))
        if s.kind == BARRIER:
            have.append(set())
    findings = []
    for number, (wanted, had) in enumerate(zip(want, have, strict=True)):
        where = f"between barrier {number - 1} and barrier {number}" if number else "before barrier 0"
        where = f"after barrier {number - 1}" if number and number == len(want) - 1 else where
        for name in sorted(wanted ^ had):
            text = f"{where} the {'kernel' if name in wanted else 'source'} alone reads {name}"
            findings.append(SourceFinding("read", text))
    return findings
