// Arithmetic on page runs.
#include "check.h"
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

}  // namespace

int main()
{
    test_coalesce_joins_small_gaps();
    test_coalesce_bounds_the_number_of_runs();
    test_complement_and_subtract();
    test_large_runs_keep_their_place_in_huge_pages();
    return 0;
}
