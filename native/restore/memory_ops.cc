#include "restore/memory_ops.h"

#include <fcntl.h>
#include <linux/prctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include <algorithm>

namespace venus {
namespace {

constexpr int kGuardInstall = 102;  // MADV_GUARD_INSTALL
constexpr Word kNoFile = ~Word{0};
constexpr Word kTemporary = 0;  // the lowest free descriptor

std::string describe(const Mapping &mapping)
{
    char text[48];
    snprintf(text, sizeof text, "memory %lx-%lx", mapping.area.start, mapping.area.end);
    return text;
}

Word flags_of(const Mapping &mapping)
{
    return MAP_FIXED | (mapping.shared ? MAP_SHARED : MAP_PRIVATE) |
           (mapping.no_reserve ? MAP_NORESERVE : 0u);
}

// The kernel shows a program's arguments and environment in /proc only from anonymous memory:
// their pages are filled, not mapped.
PageRun argument_pages(const MemoryLayout &layout)
{
    uint64_t start = std::min(layout.arg_start, layout.env_start);
    uint64_t end = std::max(layout.arg_end, layout.env_end);
    if (start == 0 || start >= end)
        return {0, 0};
    return {start & ~(kPageBytes - 1), (end + kPageBytes - 1) & ~(kPageBytes - 1)};
}

// What init makes of pool memory that is discarded is ordinary: it would be inherited.
bool is_kept_from_children(const Mapping &mapping)
{
    return std::find(mapping.advice.begin(), mapping.advice.end(), MADV_DONTFORK) !=
           mapping.advice.end();
}

// The part that is copied into anonymous memory instead of being mapped.
PageRun filled_part(const ProcessImage &process, const Mapping &mapping)
{
    if (mapping.backing != Backing::kAnonymous)
        return {0, 0};
    bool fill = is_kept_from_children(mapping) && (mapping.protection & PROT_WRITE);
    return fill ? mapping.area : argument_pages(process.layout);
}

void map_pieces(const ProcessPlanContext &context, const ProcessImage &process,
                const Mapping &mapping, OpList &ops)
{
    PageRun filled = filled_part(process, mapping);
    for (const ExtentPiece &piece : mapping.pieces) {
        Word file = word(context.descriptors.extents) + piece.extent;
        auto offset_of = [&](uint64_t address) {
            return piece.offset + (address - piece.run.start);
        };
        uint64_t filled_start = std::clamp(filled.start, piece.run.start, piece.run.end);
        uint64_t filled_end = std::clamp(filled.end, filled_start, piece.run.end);
        for (PageRun part : {PageRun{piece.run.start, filled_start},
                             PageRun{filled_end, piece.run.end}})
            if (part.start < part.end)
                ops.call(describe(mapping), SYS_mmap,
                         {part.start, part.size(), mapping.protection, flags_of(mapping), file,
                          offset_of(part.start)},
                         static_cast<int64_t>(part.start));
        if (filled_start < filled_end)
            ops.call(describe(mapping), SYS_pread64,
                     {file, filled_start, filled_end - filled_start, offset_of(filled_start)},
                     static_cast<int64_t>(filled_end - filled_start));
    }
}

// The whole segment at its first part; every part has a protection of its own.
void attach_segment(const Mapping &mapping, OpList &ops)
{
    std::string object = "attachment of segment " + std::to_string(mapping.object);
    if (mapping.offset == 0)
        ops.call(object, SYS_shmat,
                 {mapping.object, mapping.area.start,
                  (mapping.file_writable ? 0u : Word{SHM_RDONLY}) |
                      (mapping.protection & PROT_EXEC ? Word{SHM_EXEC} : 0u)},
                 static_cast<int64_t>(mapping.area.start));
    ops.call(object, SYS_mprotect,
             {mapping.area.start, mapping.area.size(), mapping.protection});
}

bool pieces_cover(const Mapping &mapping)
{
    uint64_t covered = 0;
    for (const ExtentPiece &piece : mapping.pieces)
        covered += piece.run.size();
    return covered == mapping.area.size();
}

// previous_end: where the mapping below ends. A stack that touches it cannot grow, as the part of a
// fork's stack above its shared pages: a page added below would cover that neighbour.
void map_anonymous(const ProcessPlanContext &context, const ProcessImage &process,
                   const Mapping &mapping, uint64_t previous_end, OpList &ops)
{
    PageRun area = mapping.area;
    Word flags = flags_of(mapping) | MAP_ANONYMOUS;
    bool grows_down = mapping.grows_down && previous_end < area.start;
    if (grows_down) {
        // A file mapping cannot grow: keep an anonymous page at the low end, which grows.
        flags |= MAP_GROWSDOWN;
        if (!mapping.pieces.empty() && mapping.pieces.front().run.start == area.start)
            area.start -= kPageBytes;
    }
    PageRun filled = filled_part(process, mapping);
    bool is_filled = filled.start < mapping.area.end && mapping.area.start < filled.end;
    if (grows_down || is_filled || !pieces_cover(mapping))
        ops.call(describe(mapping), SYS_mmap,
                 {area.start, area.size(), mapping.protection, flags, kNoFile, 0},
                 static_cast<int64_t>(area.start));
    map_pieces(context, process, mapping, ops);
}

void advise(const Mapping &mapping, OpList &ops)
{
    for (int advice : mapping.advice)
        ops.call(describe(mapping), SYS_madvise,
                 {mapping.area.start, mapping.area.size(), word(advice)});
    for (const PageRun &guard : mapping.guards)
        ops.call(describe(mapping), SYS_madvise, {guard.start, guard.size(), kGuardInstall});
    if (mapping.locked)
        ops.call(describe(mapping), SYS_mlock, {mapping.area.start, mapping.area.size()});
}

void add_layout_ops(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops)
{
    const MemoryLayout &layout = process.layout;
    struct prctl_mm_map map{};
    map.start_code = layout.start_code;
    map.end_code = layout.end_code;
    map.start_data = layout.start_data;
    map.end_data = layout.end_data;
    map.start_brk = layout.start_brk;
    map.brk = layout.brk;
    map.start_stack = layout.start_stack;
    map.arg_start = layout.arg_start;
    map.arg_end = layout.arg_end;
    map.env_start = layout.env_start;
    map.env_end = layout.env_end;
    PlanWriter &writer = ops.writer();
    map.auxv = reinterpret_cast<__u64 *>(writer.data(layout.auxv));
    map.auxv_size = static_cast<__u32>(layout.auxv.size());
    map.exe_fd = kTemporary;
    std::string exe = layout.exe_nameless == kNoObject
                          ? layout.exe_path
                          : nameless_path(context.descriptors, layout.exe_nameless);
    ops.call(exe, SYS_openat, {word(AT_FDCWD), writer.text(exe), O_RDONLY | O_CLOEXEC},
             kTemporary);
    ops.call("memory layout", SYS_prctl,
             {PR_SET_MM, PR_SET_MM_MAP, writer.object(map), sizeof map});
    ops.call(exe, SYS_close, {kTemporary});
}

}  // namespace

void add_memory_ops(const ProcessPlanContext &context, const ProcessImage &process, OpList &ops)
{
    PlanWriter &writer = ops.writer();
    std::string open_path;
    bool open_writable = false;
    auto close_file = [&] {
        if (!open_path.empty())
            ops.call(open_path, SYS_close, {kTemporary});
        open_path.clear();
    };
    uint64_t previous_end = 0;
    for (const Mapping &mapping : process.mappings) {
        std::string path = mapping.nameless == kNoObject
                               ? mapping.path
                               : nameless_path(context.descriptors, mapping.nameless);
        // Consecutive mappings of one file share one open.
        if (mapping.backing != Backing::kFile || path != open_path ||
            mapping.file_writable != open_writable)
            close_file();
        switch (mapping.backing) {
        case Backing::kAnonymous:
            map_anonymous(context, process, mapping, previous_end, ops);
            break;
        case Backing::kFile:
            if (open_path.empty()) {
                int access = mapping.file_writable ? O_RDWR : O_RDONLY;
                ops.call(path, SYS_openat,
                         {word(AT_FDCWD), writer.text(path), word(access | O_CLOEXEC)}, kTemporary);
                open_path = path;
                open_writable = mapping.file_writable;
            }
            if (!pieces_cover(mapping))
                ops.call(path, SYS_mmap,
                         {mapping.area.start, mapping.area.size(), mapping.protection,
                          flags_of(mapping), kTemporary, mapping.offset},
                         static_cast<int64_t>(mapping.area.start));
            map_pieces(context, process, mapping, ops);
            break;
        case Backing::kSharedMemory:
            ops.call(describe(mapping), SYS_mmap,
                     {mapping.area.start, mapping.area.size(), mapping.protection,
                      flags_of(mapping), word(context.descriptors.objects) + mapping.object,
                      mapping.offset},
                     static_cast<int64_t>(mapping.area.start));
            break;
        case Backing::kSystemV:
            attach_segment(mapping, ops);
            break;
        }
        advise(mapping, ops);
        previous_end = mapping.area.end;
    }
    close_file();
    uint64_t parked = context.window.park;
    for (const VdsoPart &part : process.vdso) {
        uint64_t bytes = part.area.size();
        ops.call("vDSO", SYS_mremap,
                 {parked, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, part.area.start},
                 static_cast<int64_t>(part.area.start));
        parked += bytes;
    }
    add_layout_ops(context, process, ops);
}

}  // namespace venus
