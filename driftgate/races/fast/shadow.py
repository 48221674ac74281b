"""The shadow memory of the fast engine: what every access does beside reading or writing, as TIR for the CPU.

A storage is cut into cells of its smallest element, and each cell remembers who touched it, in slots of int64:

====  =========================================================================================
slot  content
====  =========================================================================================
0, 1  two writers of the latest epoch in which the cell was written, as far apart as there were
2, 3  two readers of the latest epoch in which it was read, as far apart as there were
4     the last writer
5, 6  device memory only: the first writer and the first reader of the launch
====  =========================================================================================

Two slots are enough for every warp width at once. How far two threads are apart, ``a ^ b``, has for its highest bit an
ultrametric: if ``q`` is as far from ``p`` as any, no thread is farther from ``t`` than the farther of ``p`` and ``q``.
Blocks run one after another, so the first reader or writer of a launch is in another block exactly if any was.

Threads run one after another, but a read sees what the epoch began with where only others wrote since, as it would if
all of them went in step: whether two threads write the same value is judged by that. ``before`` holds those bytes.

A record is ``epoch << 39 | instance << 23 | site << 11 | changed << 10 | thread``: which barrier epoch (24 bits, from 1
on and never reset), which iteration of the loops around the statement (a 16-bit hash), where, whether a write changed
the bytes, who. 0 is nobody; 1, of epoch 0, marks memory that held a value before the launch.
"""

# The annotations of the helpers are TVMScript, which mypy takes for types.
# mypy: disable-error-code="valid-type, attr-defined"

from __future__ import annotations

from functools import cache
from typing import Any

SHARED_SLOTS, GLOBAL_SLOTS = 5, 7
EPOCH, INSTANCE, SITE, CHANGED = 39, 23, 11, 10
"""Position of the lowest bit of each field of a record; the thread has bits 0 to 9."""
MAX_THREADS, MAX_SITES, MAX_EPOCHS = 1 << 10, 1 << 12, 1 << 24

HEAD, ROW, ROWS = 8, 10, 2000
"""The table of findings: its first words are [rows used, whether one found no place, scratch ...]; rows follow."""
READ_THEN_WRITE, WRITE_THEN_READ, TWO_WRITES = 0, 1, 2
BETWEEN_BLOCKS = 3
"""Added to the three above."""
OOB_READ, OOB_WRITE, UNDEFINED, DIVERGED, DIVIDED = 10, 11, 12, 13, 14


@cache
def functions() -> dict[Any, Any]:
    """The helpers as PrimFuncs by GlobalVar: ``note``, ``fault``, ``read`` and ``write``."""
    from tvm.script import ir as I
    from tvm.script import tirx as T

    @I.ir_module(check_well_formed=False)
    class Helpers:
        @T.prim_func(private=True, s_tir=True)
        def note(
            table: T.handle("int64", "global"),
            kind: T.int64,
            earlier: T.int64,
            now: T.int64,
            cell: T.int64,
            changing: T.int64,
            same: T.int64,
            distance: T.int64,
        ):
            # One row for a kind and a pair of sites: [kind, site, site, count, record, record, cell, distance,
            # changing, same statement]; the records are those of the pair that is farthest apart.
            t = T.decl_buffer((1,), "int64", data=table)
            t[2] = T.int64(-1)
            for i in T.serial(t[0]):
                if (
                    t[8 + i * 10] == kind
                    and t[8 + i * 10 + 1] == (earlier >> 11) & T.int64(4095)
                    and t[8 + i * 10 + 2] == (now >> 11) & T.int64(4095)
                ):
                    t[2] = 8 + i * 10
            if t[2] < T.int64(0):
                if t[0] < T.int64(2000):
                    t[2] = 8 + t[0] * 10
                    t[0] = t[0] + T.int64(1)
                    t[t[2]] = kind
                    t[t[2] + 1] = (earlier >> 11) & T.int64(4095)
                    t[t[2] + 2] = (now >> 11) & T.int64(4095)
                    t[t[2] + 3] = T.int64(0)
                    t[t[2] + 7] = T.int64(-1)
                    t[t[2] + 8] = T.int64(0)
                    t[t[2] + 9] = T.int64(0)
                else:
                    t[1] = T.int64(1)
            if t[2] >= T.int64(0):
                t[t[2] + 3] = t[t[2] + 3] + T.int64(1)
                t[t[2] + 8] = t[t[2] + 8] | changing
                t[t[2] + 9] = t[t[2] + 9] | same
                if distance > t[t[2] + 7]:
                    t[t[2] + 4] = earlier
                    t[t[2] + 5] = now
                    t[t[2] + 6] = cell
                    t[t[2] + 7] = distance

        @T.prim_func(private=True, s_tir=True)
        def read(
            shadow: T.handle("int64", "global"),
            table: T.handle("int64", "global"),
            data: T.handle("uint8", "global"),
            before: T.handle("uint8", "global"),
            first: T.int64,
            stride: T.int64,
            lanes: T.int64,
            per: T.int64,
            slots: T.int64,
            grain: T.int64,
            record: T.int64,
            start: T.int64,
        ):
            # A read of ``lanes`` elements of ``per`` cells each, from element ``first`` on, in a block that began at
            # epoch ``start``. Leaves 1 in word 4 of the table where the value has to come from ``before``.
            s = T.decl_buffer((1,), "int64", data=shadow)
            t = T.decl_buffer((1,), "int64", data=table)
            d = T.decl_buffer((1,), "uint8", data=data)
            b = T.decl_buffer((1,), "uint8", data=before)
            t[4] = T.int64(0)
            for lane in T.serial(lanes):
                for part in T.serial(per):
                    c: T.let[T.int64] = ((first + lane * stride) * per + part) * slots
                    if s[c] == T.int64(0) or (slots == T.int64(5) and (s[c] >> 39) < start):
                        Helpers.note(table, T.int64(12), record, record, c // slots, T.int64(0), T.int64(0), T.int64(0))
                    if (s[c] ^ record) >> 39 == T.int64(0):
                        # What a thread wrote last itself it reads; what others wrote since the epoch began it does not.
                        if ((s[c + 4] ^ record) & T.int64(1023)) != T.int64(0):
                            t[4] = T.int64(1)
                        if ((s[c] ^ record) & T.int64(1023)) != T.int64(0):
                            Helpers.note(
                                table, T.int64(1), s[c], record, c // slots,
                                (s[c] >> 10) & T.int64(1), T.int64(0), (s[c] ^ record) & T.int64(1023),
                            )  # fmt: skip
                        if s[c + 1] != T.int64(0) and ((s[c + 1] ^ record) & T.int64(1023)) != T.int64(0):
                            Helpers.note(
                                table, T.int64(1), s[c + 1], record, c // slots,
                                (s[c + 1] >> 10) & T.int64(1), T.int64(0), (s[c + 1] ^ record) & T.int64(1023),
                            )  # fmt: skip
                    if slots > T.int64(5):
                        if s[c + 5] != T.int64(0) and (s[c + 5] >> 39) < start:
                            Helpers.note(
                                table, T.int64(4), s[c + 5], record, c // slots,
                                (s[c + 5] >> 10) & T.int64(1), T.int64(0), T.int64(0),
                            )  # fmt: skip
                        if s[c + 6] == T.int64(0):
                            s[c + 6] = record
                    if (s[c + 2] ^ record) >> 39 != T.int64(0):
                        s[c + 2] = record
                        s[c + 3] = T.int64(0)
                    else:
                        if ((s[c + 2] ^ record) & T.int64(1023)) != T.int64(0) and (
                            s[c + 3] == T.int64(0)
                            or ((s[c + 2] ^ record) & T.int64(1023)) > ((s[c + 2] ^ s[c + 3]) & T.int64(1023))
                        ):
                            s[c + 3] = record
            if t[4] != T.int64(0):
                for lane in T.serial(lanes):
                    for part in T.serial(per):
                        cell: T.let[T.int64] = (first + lane * stride) * per + part
                        if (s[cell * slots] ^ record) >> 39 != T.int64(0) or (
                            (s[cell * slots + 4] ^ record) & T.int64(1023)
                        ) == T.int64(0):
                            for byte in T.serial(grain):
                                b[cell * grain + byte] = d[cell * grain + byte]

        @T.prim_func(private=True, s_tir=True)
        def write(
            shadow: T.handle("int64", "global"),
            table: T.handle("int64", "global"),
            data: T.handle("uint8", "global"),
            before: T.handle("uint8", "global"),
            value: T.handle("uint8", "global"),
            first: T.int64,
            stride: T.int64,
            lanes: T.int64,
            per: T.int64,
            slots: T.int64,
            grain: T.int64,
            record: T.int64,
            start: T.int64,
        ):
            # Copies ``lanes`` elements, of ``per`` cells of ``grain`` bytes each, from ``value`` to ``data``.
            s = T.decl_buffer((1,), "int64", data=shadow)
            t = T.decl_buffer((1,), "int64", data=table)
            d = T.decl_buffer((1,), "uint8", data=data)
            b = T.decl_buffer((1,), "uint8", data=before)
            v = T.decl_buffer((1,), "uint8", data=value)
            for lane in T.serial(lanes):
                for part in T.serial(per):
                    cell: T.let[T.int64] = (first + lane * stride) * per + part
                    c: T.let[T.int64] = cell * slots
                    t[3] = T.int64(0)
                    t[5] = T.int64(0)
                    for byte in T.serial(grain):
                        if (s[c] ^ record) >> 39 != T.int64(0):
                            b[cell * grain + byte] = d[cell * grain + byte]
                        if d[cell * grain + byte] != v[(lane * per + part) * grain + byte]:
                            t[3] = T.int64(1)
                            d[cell * grain + byte] = v[(lane * per + part) * grain + byte]
                        if b[cell * grain + byte] != v[(lane * per + part) * grain + byte]:
                            t[5] = T.int64(1)
                    now: T.let[T.int64] = record | (t[5] << 10)
                    if (s[c] ^ now) >> 39 == T.int64(0):
                        if ((s[c] ^ now) & T.int64(1023)) != T.int64(0):
                            Helpers.note(
                                table, T.int64(2), s[c], now, cell, t[3],
                                T.Cast("int64", (s[c] ^ now) & T.int64(0x7FFFFFF800) == T.int64(0)
                                       and ((s[c] ^ now) & T.int64(1023)) < T.int64(32)),
                                (s[c] ^ now) & T.int64(1023),
                            )  # fmt: skip
                        if s[c + 1] != T.int64(0) and ((s[c + 1] ^ now) & T.int64(1023)) != T.int64(0):
                            Helpers.note(
                                table, T.int64(2), s[c + 1], now, cell, t[3],
                                T.Cast("int64", (s[c + 1] ^ now) & T.int64(0x7FFFFFF800) == T.int64(0)
                                       and ((s[c + 1] ^ now) & T.int64(1023)) < T.int64(32)),
                                (s[c + 1] ^ now) & T.int64(1023),
                            )  # fmt: skip
                    if (s[c + 2] ^ now) >> 39 == T.int64(0):
                        if ((s[c + 2] ^ now) & T.int64(1023)) != T.int64(0):
                            Helpers.note(
                                table, T.int64(0), s[c + 2], now, cell, t[5], T.int64(0),
                                (s[c + 2] ^ now) & T.int64(1023),
                            )  # fmt: skip
                        if s[c + 3] != T.int64(0) and ((s[c + 3] ^ now) & T.int64(1023)) != T.int64(0):
                            Helpers.note(
                                table, T.int64(0), s[c + 3], now, cell, t[5], T.int64(0),
                                (s[c + 3] ^ now) & T.int64(1023),
                            )  # fmt: skip
                    if slots > T.int64(5):
                        if s[c + 5] != T.int64(0) and (s[c + 5] >> 39) < start:
                            Helpers.note(table, T.int64(5), s[c + 5], now, cell, t[3], T.int64(0), T.int64(0))
                        if s[c + 6] != T.int64(0) and (s[c + 6] >> 39) < start:
                            Helpers.note(table, T.int64(3), s[c + 6], now, cell, t[5], T.int64(0), T.int64(0))
                        if s[c + 5] == T.int64(0):
                            s[c + 5] = now
                        else:
                            # It stands for later writers too, one of which may be the one that changes the bytes.
                            s[c + 5] = s[c + 5] | (t[5] << 10)
                    if (s[c] ^ now) >> 39 != T.int64(0):
                        s[c] = now
                        s[c + 1] = T.int64(0)
                    else:
                        if ((s[c] ^ now) & T.int64(1023)) == T.int64(0):
                            s[c] = s[c] | (t[5] << 10)
                        else:
                            if s[c + 1] == T.int64(0) or ((s[c] ^ now) & T.int64(1023)) > (
                                (s[c] ^ s[c + 1]) & T.int64(1023)
                            ):
                                s[c + 1] = now | (s[c + 1] & T.int64(1024))
                            else:
                                s[c + 1] = s[c + 1] | (t[5] << 10)
                    s[c + 4] = now

    return dict(Helpers.functions.items())
