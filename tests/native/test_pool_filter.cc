// Which calls a fork hands to its init: the filter, run by a small machine of its own.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "check.h"
#include "restore/pool_filter.h"

namespace {

using namespace venus;

constexpr uint64_t kFirst = 0x555500200000, kSecond = 0x7f0012340000, kBytes = 0x20000;

// The answer of a filter, as the kernel would find it.
uint32_t run(const Bytes &program, const seccomp_data &data)
{
    const auto *code = reinterpret_cast<const sock_filter *>(program.data());
    size_t count = program.size() / sizeof *code;
    uint32_t a = 0, x = 0, memory[16] = {};
    for (size_t at = 0; at < count; at++) {
        const sock_filter &i = code[at];
        bool true_branch = false;
        switch (i.code) {
        case BPF_RET | BPF_K: return i.k;
        case BPF_LD | BPF_W | BPF_ABS:
            memcpy(&a, reinterpret_cast<const uint8_t *>(&data) + i.k, sizeof a);
            continue;
        case BPF_LD | BPF_IMM: a = i.k; continue;
        case BPF_LD | BPF_MEM: a = memory[i.k]; continue;
        case BPF_LDX | BPF_MEM: x = memory[i.k]; continue;
        case BPF_ST: memory[i.k] = a; continue;
        case BPF_ALU | BPF_AND | BPF_K: a &= i.k; continue;
        case BPF_ALU | BPF_LSH | BPF_K: a <<= i.k; continue;
        case BPF_ALU | BPF_RSH | BPF_K: a >>= i.k; continue;
        case BPF_ALU | BPF_OR | BPF_X: a |= x; continue;
        case BPF_ALU | BPF_ADD | BPF_X: a += x; continue;
        case BPF_ALU | BPF_ADD | BPF_K: a += i.k; continue;
        case BPF_JMP | BPF_JA: at += i.k; continue;
        case BPF_JMP | BPF_JEQ | BPF_K: true_branch = a == i.k; break;
        case BPF_JMP | BPF_JGT | BPF_K: true_branch = a > i.k; break;
        case BPF_JMP | BPF_JGE | BPF_K: true_branch = a >= i.k; break;
        default: CHECK(!"an instruction that is not known");
        }
        at += true_branch ? i.jt : i.jf;
    }
    CHECK(!"ran off the end");
    return 0;
}

TreeImage tree(const std::vector<PageRun> &anonymous, const std::vector<PageRun> &of_files)
{
    TreeImage image;
    image.extents = {{1 << 20, true}, {1 << 20, false}};
    image.processes.resize(1);
    for (uint32_t extent = 0; extent < 2; extent++)
        for (const PageRun &run : extent == 0 ? anonymous : of_files) {
            Mapping mapping;
            mapping.area = run;
            mapping.pieces.push_back({run, extent, 0});
            image.processes[0].mappings.push_back(mapping);
        }
    return image;
}

bool notifies(const Bytes &program, long number, uint64_t address, uint64_t bytes, uint64_t third,
              uint32_t arch = AUDIT_ARCH_X86_64)
{
    seccomp_data data{};
    data.nr = static_cast<int>(number);
    data.arch = arch;
    data.args[0] = address;
    data.args[1] = bytes;
    data.args[2] = third;
    uint32_t answer = run(program, data);
    CHECK(answer == SECCOMP_RET_USER_NOTIF || answer == SECCOMP_RET_ALLOW);
    return answer == SECCOMP_RET_USER_NOTIF;
}

void test_only_calls_on_the_pool_are_handed_over()
{
    // The second range comes first: a tree is not sorted by address.
    Bytes program = make_pool_filter(
        tree({{kSecond, kSecond + kBytes}, {kFirst, kFirst + kBytes}}, {{0x10000000, 0x10010000}}));
    auto discards = [&](uint64_t address, uint64_t bytes) {
        return notifies(program, SYS_madvise, address, bytes, MADV_DONTNEED);
    };
    for (uint64_t start : {kFirst, kSecond}) {
        CHECK(discards(start, kPageBytes) && discards(start + kBytes - kPageBytes, kPageBytes));
        CHECK(discards(start - kBytes, kBytes + kPageBytes));  // reaches into it
        CHECK(!discards(start + kBytes, kPageBytes));
        CHECK(!discards(start - 2 * kBytes, kPageBytes));
        CHECK(notifies(program, SYS_mremap, start, kBytes, 2 * kBytes));
        CHECK(!notifies(program, SYS_madvise, start, kPageBytes, MADV_WILLNEED));
        CHECK(!notifies(program, SYS_munmap, start, kPageBytes, MADV_DONTNEED));
        CHECK(!notifies(program, SYS_madvise, start, kPageBytes, MADV_DONTNEED, AUDIT_ARCH_I386));
    }
    CHECK(discards(0, 0x7fffffffffff) && discards(kFirst + kBytes, kSecond - kFirst));
    CHECK(discards(0x1000, ~uint64_t{0}));             // the kernel takes it as far as it goes
    CHECK(discards(kFirst | uint64_t{5} << 57, 4096));  // a tagged address
    CHECK(!discards(0x10000000, kPageBytes));           // the file's content comes back there
    for (int advice : {8, 9, 18, 24, 102})
        CHECK(notifies(program, SYS_madvise, kFirst, 4096, static_cast<uint64_t>(advice)));
}

void test_is_bounded_and_known_again()
{
    CHECK(make_pool_filter(tree({}, {{0x10000000, 0x10010000}})).empty());
    std::vector<PageRun> many;
    for (uint64_t i = 0; i < 5000; i++)
        many.push_back({kFirst + i * 0x100000, kFirst + i * 0x100000 + kPageBytes});
    Bytes program = make_pool_filter(tree(many, {}));
    CHECK(program.size() / sizeof(sock_filter) < 400);
    for (const PageRun &run : many)
        CHECK(notifies(program, SYS_madvise, run.start, kPageBytes, MADV_DONTNEED));
    CHECK(is_pool_filter(program));
    Bytes other = program;
    other[other.size() - 12] ^= 1;
    CHECK(!is_pool_filter(other) && !is_pool_filter({}));
}

}  // namespace

int main()
{
    test_only_calls_on_the_pool_are_handed_over();
    test_is_bounded_and_known_again();
    return 0;
}
