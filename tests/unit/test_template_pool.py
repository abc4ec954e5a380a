"""Bytes of the page pool, and which templates go when it is too full."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.templates.pool import FileKey, PagePool, PoolEntry, PoolUsers, decide_eviction


def entry(name: str, files: str, used: float = 0, in_use: bool = False) -> PoolEntry:
    """Each letter is a file; its size is its place in the alphabet."""
    sizes = {(0, ord(letter)): ord(letter) - ord("a") + 1 for letter in files}
    return PoolEntry(name, sizes, used, in_use)


def union_bytes(entries: list[PoolEntry]) -> int:
    """The same, by definition."""
    files: dict[FileKey, int] = {}
    for each in entries:
        files.update(each.files)
    return sum(files.values())


def age(entry: PoolEntry) -> tuple[float, str]:
    """Less is older."""
    return entry.last_used_s, entry.template_id


pools = st.lists(
    st.builds(
        entry,
        st.just(""),
        st.text("abcdefgh", max_size=5),
        st.integers(0, 5).map(float),
        st.booleans(),
    ),
    max_size=8,
).map(
    lambda found: [
        PoolEntry(str(number), each.files, each.last_used_s, each.in_use)
        for number, each in enumerate(found)
    ]
)


def test_a_child_counts_only_what_it_adds() -> None:
    pool = PagePool()
    assert pool.add(entry("parent", "abc")) == 6
    assert pool.add(entry("child", "abcd")) == 4
    assert pool.total_bytes == 10
    assert (pool.own_bytes("parent"), pool.own_bytes("child")) == (0, 4)
    assert pool.remove("parent") == 0
    assert pool.own_bytes("child") == 10
    assert pool.remove("child") == 10
    assert (pool.total_bytes, len(pool)) == (0, 0)
    with pytest.raises(KeyError):
        pool.remove("child")


def test_a_file_has_one_size_whoever_looked_at_it() -> None:
    early, late = (PoolEntry(name, {(0, 1): size}, 0, False) for name, size in (("a", 4), ("b", 9)))
    pool = PagePool([early, late])
    assert pool.total_bytes == 4
    assert (pool.remove("a"), pool.remove("b"), pool.total_bytes) == (0, 4, 0)


def test_a_template_is_in_the_pool_once() -> None:
    pool = PagePool([entry("x", "a")])
    with pytest.raises(ValueError, match="x is in the pool already"):
        pool.add(entry("x", "b"))
    assert pool.total_bytes == 1


@settings(deadline=None)  # a loaded machine is no defect
@given(pools, st.data())
def test_bytes_are_those_of_the_files_that_are_left(
    entries: list[PoolEntry], data: st.DataObject
) -> None:
    pool = PagePool()
    grown = sum(pool.add(each) for each in entries)
    assert grown == pool.total_bytes == union_bytes(entries)
    left = list(entries)
    for gone in data.draw(st.permutations(entries)):
        left.remove(gone)
        own = pool.own_bytes(gone.template_id)
        assert pool.remove(gone.template_id) == own
        assert pool.total_bytes == union_bytes(left)


def test_the_least_recently_used_goes_first() -> None:
    entries = [entry("new", "d", used=3), entry("old", "d", used=1), entry("middle", "e", used=2)]
    assert decide_eviction(entries, 9).template_ids == ()
    assert decide_eviction(entries, 8).template_ids == ("middle",)  # `old` frees nothing
    assert decide_eviction(entries, 4).template_ids == ("middle",)
    assert decide_eviction(entries, 0).template_ids == ("old", "middle", "new")


def test_where_one_can_stay_after_all_it_is_the_most_recently_used() -> None:
    entries = [entry("old", "c", used=1), entry("middle", "d", used=2), entry("large", "h", used=3)]
    assert decide_eviction(entries, 4).template_ids == ("old", "large")
    assert decide_eviction(entries, 3).template_ids == ("middle", "large")


def test_shared_files_are_freed_with_the_last() -> None:
    base = entry("base", "h", used=1)
    children = [entry(f"child-{letter}", f"h{letter}", used=2) for letter in "ab"]
    assert decide_eviction([base, *children], 11).fits
    assert decide_eviction([base, *children], 10).template_ids == ("child-a",)
    assert decide_eviction([base, *children], 9).template_ids == ("child-b",)
    assert decide_eviction([base, *children], 7).template_ids == ("base", "child-a", "child-b")


def test_what_is_in_use_stays_and_nothing_goes_in_vain() -> None:
    used = entry("used", "gh", used=0, in_use=True)
    idle = entry("idle", "a", used=1)
    assert decide_eviction([used, idle], 15).template_ids == ("idle",)
    hopeless = decide_eviction([used, idle], 14)
    assert (hopeless.template_ids, hopeless.fits, hopeless.pool_bytes) == ((), False, 16)


@settings(deadline=None)
@given(pools, st.integers(0, 40))
def test_eviction_is_enough_and_not_too_much(entries: list[PoolEntry], limit: int) -> None:
    eviction = decide_eviction(entries, limit)
    by_id = {each.template_id: each for each in entries}
    gone = [by_id[each] for each in eviction.template_ids]
    left = [each for each in entries if each not in gone]
    assert not any(each.in_use for each in gone)
    assert eviction.pool_bytes == union_bytes(left)
    assert eviction.fits == (union_bytes([each for each in entries if each.in_use]) <= limit)
    if not eviction.fits:
        assert not gone
        return
    assert union_bytes(left) <= limit
    # None of them could have stayed.
    for each in gone:
        assert union_bytes([*left, each]) > limit
    assert gone == sorted(gone, key=age)


@settings(deadline=None)
@given(pools, st.integers(0, 40))
def test_no_template_goes_to_keep_an_older_one(entries: list[PoolEntry], limit: int) -> None:
    """What is in use and what is younger leaves no room for it, whatever older ones stay."""
    eviction = decide_eviction(entries, limit)
    gone = [each for each in entries if each.template_id in eviction.template_ids]
    for one in gone:
        before_it = [
            each for each in entries if each not in gone and (each.in_use or age(each) > age(one))
        ]
        assert union_bytes([*before_it, one]) > limit


@settings(deadline=None)
@given(pools, st.data())
def test_what_anybody_uses_is_in_the_pool(entries: list[PoolEntry], data: st.DataObject) -> None:
    users, used = PoolUsers(), list[PoolEntry]()
    for _ in range(data.draw(st.integers(0, 20))):
        if used and data.draw(st.booleans()):
            users.remove(used.pop(data.draw(st.integers(0, len(used) - 1))).template_id)
        elif entries:
            used.append(data.draw(st.sampled_from(entries)))
            users.add(used[-1].template_id, used[-1].files)
        assert users.total_bytes == union_bytes(used)
    named = {each.template_id: each.last_used_s for each in entries[::2]}
    assert {each.template_id: each for each in users.entries(named, captured=())} == {
        each.template_id: PoolEntry(
            each.template_id,
            each.files,
            named.get(each.template_id, 0.0),
            in_use=used.count(each) > 1 or each.template_id not in named,
        )
        for each in used
    }


def test_what_a_sandbox_keeps_replaces_what_it_kept_and_goes_before_any_template() -> None:
    users = PoolUsers()
    users.add("template", {(1, 1): 10})
    users.keep("sandbox", {(1, 1): 10, (1, 2): 20})
    users.keep("sandbox", {(1, 1): 10, (1, 3): 5})
    assert users.total_bytes == 15
    entries = users.entries({"template": 0.0}, captured=())
    assert decide_eviction(entries, 10).template_ids == ("sandbox",)
    assert not decide_eviction(users.entries({}, captured={"sandbox"}), 10).fits
    users.keep("sandbox", {})
    assert users.total_bytes == 10


def test_a_user_too_few_is_an_error() -> None:
    users = PoolUsers()
    users.add("x", {(0, 1): 4})
    users.remove("x")
    with pytest.raises(ValueError, match="nobody uses template x"):
        users.remove("x")
