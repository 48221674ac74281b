"""Delta debugging: the smallest set of kernels whose replacement makes the symptom go."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def smallest(items: Sequence[str], enough: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """A subset of ``items`` that is ``enough`` and of which no single item can be left out.

    ``enough(items)`` holds. Zeller and Hildebrandt's ddmin (2002): halves, then complements, then finer parts.
    """
    kept, parts = tuple(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        rests = [tuple(x for x in kept if x not in chunk) for chunk in chunks] if len(chunks) > 2 else []
        if (smaller := next((c for c in chunks if enough(c)), None)) is not None:
            kept, parts = smaller, 2
        elif (smaller := next((r for r in rests if enough(r)), None)) is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return kept
