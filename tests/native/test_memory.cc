// Arithmetic on page runs.
#include "check.h"
#include "memory/page_choice.h"
#include "memory/page_runs.h"

namespace {

using namespace venus;
constexpr uint64_t P = kPageBytes;

void test_coalesce_joins_small_gaps()
{
    std::vector<PageRun> runs = {{0, P}, {2 * P, 3 * P}, {10 * P, 11 * P}};
    CHECK((coalesce(runs, P, 100) == std::vector<PageRun>{{0, 3 * P}, {10 * P, 11 * P}}));
    CHECK((coalesce(runs, 0, 100) == runs));
    CHECK((coalesce({}, P, 1).empty()));
}

void test_coalesce_bounds_the_number_of_runs()
{
    // Gaps of 1, 5, 2, 9 pages: the smallest are joined first.
    std::vector<PageRun> runs = {
        {0, P}, {2 * P, 3 * P}, {8 * P, 9 * P}, {11 * P, 12 * P}, {21 * P, 22 * P}};
    CHECK((coalesce(runs, 0, 3) ==
           std::vector<PageRun>{{0, 3 * P}, {8 * P, 12 * P}, {21 * P, 22 * P}}));
    CHECK((coalesce(runs, 0, 1) == std::vector<PageRun>{{0, 22 * P}}));
    // But not over more than a mebibyte, or than there is.
    runs = {{0, P}, {2 * P, 3 * P}, {1000 * P, 1001 * P}};
    CHECK((coalesce(runs, 0, 1) == std::vector<PageRun>{{0, 3 * P}, {1000 * P, 1001 * P}}));
    runs = {{0, 1000 * P}, {2000 * P, 2001 * P}};
    CHECK((coalesce(runs, 0, 1) == std::vector<PageRun>{{0, 2001 * P}}));
}

void test_complement_and_subtract()
{
    CHECK((complement({0, 10 * P}, {{2 * P, 3 * P}, {5 * P, 10 * P}}) ==
           std::vector<PageRun>{{0, 2 * P}, {3 * P, 5 * P}}));
    CHECK((complement({0, P}, {}) == std::vector<PageRun>{{0, P}}));
    CHECK((complement({0, P}, {{0, P}}).empty()));
    CHECK((subtract({{0, 4 * P}, {6 * P, 8 * P}}, {{P, 2 * P}, {7 * P, 9 * P}}) ==
           std::vector<PageRun>{{0, P}, {2 * P, 4 * P}, {6 * P, 7 * P}}));
    CHECK(total_bytes({{0, P}, {3 * P, 5 * P}}) == 3 * P);
}

void test_large_runs_keep_their_place_in_huge_pages()
{
    uint64_t address = 0x7f0000123000;
    std::vector<PageRun> runs = {{0x1000, 0x4000}, {address, address + 2 * kHugePageBytes}};
    ExtentLayout layout = lay_out(runs);
    CHECK(layout.offsets[0] == 0);
    CHECK(layout.offsets[1] >= 0x3000);
    CHECK(layout.offsets[1] % kHugePageBytes == address % kHugePageBytes);
    CHECK(layout.size == layout.offsets[1] + 2 * kHugePageBytes);
}

// Ten pages, all stored in extent 0 at the offset of their address.
PagesNow stored_whole()
{
    PagesNow now;
    now.own = {{0, 10 * P}};
    now.stored = {{{0, 10 * P}, 0, 0}};
    return now;
}

void test_only_what_changed_is_copied()
{
    PagesNow now = stored_whole();
    now.changed = {{3 * P, 4 * P}};
    std::vector<PageChoice> choices = choose_pages({now}, {10 * P}, {64, 64, 8});
    CHECK((choices[0].copied == now.changed));
    CHECK((choices[0].referenced ==
           std::vector<StoredRun>{{{0, 3 * P}, 0, 0}, {{4 * P, 10 * P}, 0, 4 * P}}));
}

void test_discarded_pages_are_no_longer_there()
{
    PagesNow now = stored_whole();
    now.own = {{0, 4 * P}, {6 * P, 8 * P}};
    now.fillers = {{8 * P, 10 * P}};  // never were its own: still what they were
    std::vector<PageChoice> choices = choose_pages({now}, {10 * P}, {64, 64, 8});
    CHECK(choices[0].copied.empty());
    CHECK((choices[0].referenced ==
           std::vector<StoredRun>{{{0, 4 * P}, 0, 0}, {{6 * P, 10 * P}, 0, 6 * P}}));
}

void test_what_nobody_knows_is_copied()
{
    PagesNow now;
    now.own = now.changed = {{0, P}, {5 * P, 6 * P}};
    now.max_gap_bytes = P;
    CHECK((choose_pages({now}, {}, {64, 64, 8})[0].copied == now.own));
    now.max_gap_bytes = 4 * P;
    CHECK((choose_pages({now}, {}, {64, 64, 8})[0].copied == std::vector<PageRun>{{0, 6 * P}}));
}

void test_where_seams_are_too_many_small_pieces_are_copied()
{
    PagesNow now;
    now.own = {{0, 100 * P}};
    now.stored = {{{0, 100 * P}, 0, 0}};
    now.changed = {{P, 2 * P}, {3 * P, 4 * P}, {80 * P, 81 * P}};
    CHECK(choose_pages({now}, {100 * P}, {64, 6, 8})[0].referenced.size() == 4);
    PageChoice choice = choose_pages({now}, {100 * P}, {64, 5, 8})[0];
    CHECK((choice.copied == std::vector<PageRun>{{0, 4 * P}, {80 * P, 100 * P}}));
    CHECK((choice.referenced == std::vector<StoredRun>{{{4 * P, 80 * P}, 0, 4 * P}}));
    choice = choose_pages({now}, {100 * P}, {64, 1, 8})[0];
    CHECK((choice.referenced.empty() && choice.copied == now.own));
    // Holes are no seams: there is nothing to be won by copying.
    now.own = {{0, P}, {3 * P, 4 * P}, {80 * P, 81 * P}};
    now.stored = {{{0, P}, 0, 0}, {{3 * P, 4 * P}, 0, P}, {{80 * P, 81 * P}, 0, 2 * P}};
    now.changed = {};
    CHECK((choose_pages({now}, {3 * P}, {64, 0, 8})[0].referenced == now.stored));
}

void test_extents_of_little_use_are_given_up()
{
    PagesNow now;
    now.own = {{0, 12 * P}};
    now.stored = {{{0, 8 * P}, 0, 0}, {{8 * P, 12 * P}, 1, 0}};
    // Of extent 1 an eighth is still used.
    PageChoice choice = choose_pages({now}, {8 * P, 32 * P}, {64, 64, 8})[0];
    CHECK((choice.copied == std::vector<PageRun>{{8 * P, 12 * P}}));
    CHECK((choice.referenced == std::vector<StoredRun>{{{0, 8 * P}, 0, 0}}));
    // Two are one too many: the emptier goes.
    choice = choose_pages({now}, {8 * P, 4 * P}, {64, 64, 1})[0];
    CHECK((choice.copied == std::vector<PageRun>{{8 * P, 12 * P}}));
    CHECK(choose_pages({now}, {8 * P, 4 * P}, {64, 64, 2})[0].copied.empty());
}

// A fork of one extent over another, which wrote two pages; a snapshot knows the one.
void test_what_a_fork_has_not_written_is_in_the_pool()
{
    PagesNow now;
    now.pool = {{{0, 8 * P}, 1, 0}, {{8 * P, 10 * P}, 2, 6 * P}};
    now.own = {{P, 2 * P}, {5 * P, 6 * P}};
    now.changed = {{5 * P, 6 * P}};
    now.stored = {{{0, 3 * P}, 0, 0}};
    now.fillers = {{0, P}, {2 * P, 3 * P}};
    PageChoice choice = choose_pages({now}, {3 * P, 8 * P, 2 * P}, {64, 64, 8})[0];
    CHECK((choice.copied == now.changed));
    CHECK((choice.referenced == std::vector<StoredRun>{{{0, 3 * P}, 0, 0},
                                                       {{3 * P, 5 * P}, 1, 3 * P},
                                                       {{6 * P, 8 * P}, 1, 6 * P},
                                                       {{8 * P, 10 * P}, 2, 6 * P}}));
    // Extent 0 is given up: its own page is copied, and beside it is the pool. Extent 2 as well.
    choice = choose_pages({now}, {30 * P, 8 * P, 20 * P}, {64, 64, 8})[0];
    CHECK((choice.copied == std::vector<PageRun>{{P, 2 * P}, {5 * P, 6 * P}, {8 * P, 10 * P}}));
    CHECK((choice.referenced == std::vector<StoredRun>{
                                    {{0, P}, 1, 0}, {{2 * P, 5 * P}, 1, 2 * P},
                                    {{6 * P, 8 * P}, 1, 6 * P}}));
}

// A fork's own page of zeroes needs no place, and hides what the pool has there.
void test_own_pages_hide_the_pool()
{
    PagesNow now;
    now.pool = {{{0, 4 * P}, 0, 0}};
    now.own = {{P, 2 * P}};
    PageChoice choice = choose_pages({now}, {4 * P}, {64, 64, 8})[0];
    CHECK(choice.copied.empty());
    CHECK((choice.referenced ==
           std::vector<StoredRun>{{{0, P}, 0, 0}, {{2 * P, 4 * P}, 0, 2 * P}}));
}

}  // namespace

int main()
{
    test_only_what_changed_is_copied();
    test_discarded_pages_are_no_longer_there();
    test_what_nobody_knows_is_copied();
    test_where_seams_are_too_many_small_pieces_are_copied();
    test_extents_of_little_use_are_given_up();
    test_what_a_fork_has_not_written_is_in_the_pool();
    test_own_pages_hide_the_pool();
    test_coalesce_joins_small_gaps();
    test_coalesce_bounds_the_number_of_runs();
    test_complement_and_subtract();
    test_large_runs_keep_their_place_in_huge_pages();
    return 0;
}
