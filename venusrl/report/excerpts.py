"""Which episodes a reader gets to see. Pure."""

from collections.abc import Sequence

from venusrl.report.run_data import Record

BEFORE, AFTER = "before sampled", "after sampled"


def compared_tasks(episodes: Sequence[Record], limit: int) -> list[tuple[Record, Record]]:
    """Held-out tasks with their episode before and after training, one task per family.

    A task that only the trained policy solved is preferred; it shows what was learnt.
    """
    before = {record["task"]: record for record in episodes if record["phase"] == BEFORE}
    best: dict[str, tuple[int, Record, Record]] = {}
    for record in episodes:
        first = before.get(record["task"])
        if record["phase"] != AFTER or first is None:
            continue
        rank = 2 * (record["outcome"] == "solved") + (first["outcome"] == "unsolved")
        known = best.get(record["family"])
        if known is None or rank > known[0]:
            best[record["family"]] = (rank, first, record)
    return [(first, last) for _, first, last in best.values()][:limit]


def still_unsolved(episodes: Sequence[Record], limit: int) -> list[Record]:
    """What goes wrong after training, different families first."""
    wrong = [r for r in episodes if r["phase"] == AFTER and r["outcome"] == "unsolved"]
    seen: dict[str, int] = {}
    ranked = []
    for record in wrong:
        seen[record["family"]] = seen.get(record["family"], 0) + 1
        ranked.append((seen[record["family"]], record))
    return [record for _, record in sorted(ranked, key=lambda pair: pair[0])][:limit]
