#include "capture/memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <optional>

#include "capture/areas.h"
#include "capture/nameless_files.h"
#include "capture/own_pages.h"
#include "capture/paths.h"
#include "capture/plan_remains.h"
#include "os/checked.h"
#include "restore/refused.h"
#include "os/page_scan.h"
#include "os/proc.h"

namespace venus {
namespace {

std::string describe(const Area &area)
{
    char text[64];
    snprintf(text, sizeof text, "mapping %lx-%lx ", area.run.start, area.run.end);
    return text + (area.name.empty() ? "(anonymous)" : area.name);
}

// Every flag that can be set is either rebuilt, implied, or refused: none is dropped silently.
void judge_flags(const StoppedProcess &process, const Area &area, Mapping &mapping)
{
    // Access, what the file allows, accounting, what the kernel derives by itself, and write
    // tracking: of a program's own the descriptor is refused.
    static const std::set<std::string> implied = {"rd", "wr", "ex", "sh", "mr", "mw", "me",
                                                  "ms", "ac", "sd", "gd", "lo", "nr", "lf", "gu", "uw"};
    static const std::map<std::string, int> advice = {
        {"sr", MADV_SEQUENTIAL}, {"rr", MADV_RANDOM},    {"dc", MADV_DONTFORK},
        {"wf", MADV_WIPEONFORK}, {"dd", MADV_DONTDUMP},  {"hg", MADV_HUGEPAGE},
        {"nh", MADV_NOHUGEPAGE}, {"mg", MADV_MERGEABLE},
    };
    for (const std::string &flag : area.flags) {
        if (implied.contains(flag))
            continue;
        auto known = advice.find(flag);
        if (known == advice.end())
            throw Refused(process.label, describe(area), "its flag '" + flag + "' is not supported");
        mapping.advice.push_back(known->second);
    }
    if (area.protection_key != 0)
        throw Refused(process.label, describe(area), "it has a protection key");
    mapping.grows_down = area.flags.contains("gd");
    mapping.no_reserve = area.flags.contains("nr");
    mapping.locked = area.flags.contains("lo");
    if (area.flags.contains("lf"))
        throw Refused(process.label, describe(area), "it is locked on fault");
}

std::string map_files_path(const StoppedProcess &process, const Area &area)
{
    char name[64];
    snprintf(name, sizeof name, "map_files/%lx-%lx", area.run.start, area.run.end);
    return process.proc_path(name);
}

uint32_t shared_memory_object(const StoppedProcess &process, CaptureState &state, const Area &area,
                              const std::string &target)
{
    std::string link = map_files_path(process, area);
    struct stat status;
    checked(stat(link.c_str(), &status), "stat", link);
    auto key = std::pair(status.st_dev, status.st_ino);
    for (uint32_t i = 0; i < state.image.objects.size(); i++)
        if (auto *memory = std::get_if<SharedMemoryFile>(&state.image.objects[i]))
            if (auto known = state.memories.find(key);
                known != state.memories.end() && known->second == memory->memory)
                return i;
    os::UniqueFd fd(checked(open(link.c_str(), O_RDWR | O_CLOEXEC), "open", link));
    SharedMemoryFile file{};
    bool is_memfd = target.starts_with("/memfd:");
    size_t deleted = target.rfind(" (deleted)");
    file.name = is_memfd ? target.substr(7, deleted - 7) : "shared-anonymous";
    file.flags = O_RDWR;
    file.size = static_cast<uint64_t>(status.st_size);
    int seals = fcntl(fd.get(), F_GET_SEALS);
    file.seals = is_memfd && seals > 0 ? static_cast<uint32_t>(seals) : 0;
    file.may_be_sealed = is_memfd && (file.seals & F_SEAL_SEAL) == 0;
    file.memory = static_cast<uint32_t>(state.memories.size());
    state.memories[key] = file.memory;
    file.content = copy_shared_memory(state, fd.get(), file.size);
    return state.add_object(std::move(file), os::UniqueFd());
}

// Number in CaptureState::inherited, if that is what the area maps.
std::optional<uint32_t> inherited_extent(const CaptureState &state, FileIdentity identity)
{
    for (uint32_t i = 0; i < state.inherited.size(); i++)
        if (state.inherited[i].identity == identity)
            return i;
    return std::nullopt;
}

// What became several mappings in a fork is captured as the one that it is in the original: otherwise
// each generation would have more of them.
bool continues(const Mapping &mapping, const OwnPages &own, const Mapping &next,
               const OwnPages &next_own)
{
    bool pool = own.parts.back().pool_extent || next_own.parts.front().pool_extent;
    return pool && mapping.area.end == next.area.start &&
           mapping.backing == Backing::kAnonymous && next.backing == Backing::kAnonymous &&
           mapping.protection == next.protection && mapping.advice == next.advice &&
           mapping.no_reserve == next.no_reserve && mapping.locked == next.locked &&
           !mapping.grows_down && !next.grows_down && own.anonymous == next_own.anonymous &&
           own.watchable && next_own.watchable;
}

void append(OwnPages &own, OwnPages &&next)
{
    own.parts.insert(own.parts.end(), next.parts.begin(), next.parts.end());
    own.pages.insert(own.pages.end(), next.pages.begin(), next.pages.end());
    own.max_gap_bytes = std::min(own.max_gap_bytes, next.max_gap_bytes);
}

// Private memory, behind what came before it.
void add_private(ProcessImage &image, std::vector<OwnPages> &all, Mapping mapping, OwnPages own)
{
    if (!all.empty() && all.back().mapping + 1 == image.mappings.size() &&
        continues(image.mappings.back(), all.back(), mapping, own)) {
        Mapping &whole = image.mappings.back();
        whole.area.end = mapping.area.end;
        whole.guards.insert(whole.guards.end(), mapping.guards.begin(), mapping.guards.end());
        append(all.back(), std::move(own));
        return;
    }
    own.mapping = image.mappings.size();
    image.mappings.push_back(std::move(mapping));
    all.push_back(std::move(own));
}

// shmat() attaches a whole segment: one of which a part was unmapped cannot be rebuilt.
void check_attachments(const StoppedProcess &process, const CaptureState &state,
                       const ProcessImage &image)
{
    const Mapping *previous = nullptr;
    auto refuse = [&](const Mapping &mapping) {
        throw Refused(process.label,
                      "shared memory segment " + std::to_string(mapping.object),
                      "only a part of it is attached");
    };
    auto end_of = [&](const Mapping &mapping) -> uint64_t {
        for (const SystemVMemory &memory : state.image.system_v.memories)
            if (memory.object.id == static_cast<int>(mapping.object))
                return (memory.size + kPageBytes - 1) & ~(kPageBytes - 1);
        return 0;
    };
    for (const Mapping &mapping : image.mappings) {
        bool attached = mapping.backing == Backing::kSystemV;
        bool continues = attached && mapping.offset != 0;
        if (continues && (!previous || previous->object != mapping.object ||
                          previous->area.end != mapping.area.start ||
                          previous->offset + previous->area.size() != mapping.offset))
            refuse(mapping);
        if (previous && !continues && previous->offset + previous->area.size() != end_of(*previous))
            refuse(*previous);
        previous = attached ? &mapping : nullptr;
    }
    if (previous && previous->offset + previous->area.size() != end_of(*previous))
        refuse(*previous);
}

void capture_layout(StoppedProcess &process, CaptureState &state, MemoryLayout &layout)
{
    auto field = [&](size_t number) { return std::stoull(process.stat.at(number)); };
    layout.start_code = field(26);
    layout.end_code = field(27);
    layout.start_stack = field(28);
    layout.start_data = field(45);
    layout.end_data = field(46);
    layout.start_brk = field(47);
    layout.arg_start = field(48);
    layout.arg_end = field(49);
    layout.env_start = field(50);
    layout.env_end = field(51);
    int64_t brk = process.call(SYS_brk, 0);
    if (brk <= 0)
        throw os::Error("get the heap of", process.label, EINVAL);
    layout.brk = static_cast<uint64_t>(brk);
    layout.auxv = proc::read_bytes(process.proc_path("auxv"));
    std::string exe = process.proc_path("exe");
    std::string target = proc::read_link(exe);
    if (std::optional<uint32_t> nameless = nameless_file(process, exe, target, false, state))
        layout.exe_nameless = *nameless;
    else
        layout.exe_path = path_in_sandbox(process, state.init, exe, target);
}

bool is_vdso(const Area &area)
{
    return area.name == "[vdso]" || area.name.starts_with("[vvar");
}

}  // namespace

void prepare_injection(StoppedProcess &process, const std::vector<FileIdentity> &plans,
                       const StoppedProcess *sharer)
{
    if (sharer) {
        process.gadget = sharer->gadget;
        process.scratch = sharer->scratch;
        process.plan_code = sharer->plan_code;
        return;
    }
    // Not smaps: the kernel would count the pages of all areas for it.
    std::vector<Area> areas = parse_areas(proc::read_text(process.proc_path("maps")));
    find_plan_remains(process, areas, plans);
    for (const Area &area : areas) {
        if (area.name != "[vdso]")
            continue;
        std::vector<uint8_t> code(area.run.size());
        process.read_memory(area.run.start, code.data(), code.size());
        static constexpr uint8_t instruction[] = {0x0f, 0x05};
        auto found = std::search(code.begin(), code.end(), std::begin(instruction),
                                 std::end(instruction));
        if (found == code.end())
            break;
        process.gadget = area.run.start + static_cast<uint64_t>(found - code.begin());
        // Shared, so that the kernel does not merge it with a neighbour of the program's own.
        int64_t page = process.call(SYS_mmap, 0, kPageBytes, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, static_cast<uint64_t>(-1), 0);
        if (page < 0)
            throw os::Error("map a page in", process.label, static_cast<int>(-page));
        process.scratch = static_cast<uint64_t>(page);
        process.owns_scratch = true;
        return;
    }
    throw Refused(process.label, "its vDSO", "it has none that system calls can be made from");
}

std::vector<VdsoPart> own_vdso()
{
    std::vector<VdsoPart> parts;
    for (const Area &area : parse_areas(proc::read_text("/proc/self/smaps")))
        if (is_vdso(area))
            parts.push_back({area.run});
    return parts;
}

void capture_memory(StoppedProcess &process, CaptureState &state, ProcessImage &image,
                    KnownProcess *known)
{
    PageScan scan(process.proc_path("pagemap"));
    std::vector<OwnPages> all;
    for (const Area &area : parse_areas(proc::read_text(process.proc_path("smaps")))) {
        if (area.run.start == process.scratch || area.name == "[vsyscall]")
            continue;
        if (is_vdso(area)) {
            image.vdso.push_back({area.run});
            continue;
        }
        Mapping mapping;
        mapping.area = area.run;
        mapping.protection = area.protection;
        mapping.shared = area.shared;
        mapping.offset = area.offset;
        judge_flags(process, area, mapping);
        bool wiped = area.flags.contains("wf"), watched = area.flags.contains("uw");
        mapping.guards = scan.guards(area.run);
        bool is_segment = area.shared && area.name.starts_with("/SYSV");  // whose inode may be 0
        if (area.inode == 0 && area.shared && !is_segment)
            throw Refused(process.label, describe(area), "its kind is not known");
        if (area.inode == 0 && !is_segment) {
            // What is wiped on fork is zero in a fork: nothing to copy.
            if (wiped)
                image.mappings.push_back(std::move(mapping));
            else
                add_private(image, all, std::move(mapping),
                            {0, {{area.run, watched}}, scan.private_pages(area.run)});
            continue;
        }
        std::string link = map_files_path(process, area);
        std::string target = proc::read_link(link);
        struct stat status;
        checked(stat(link.c_str(), &status), "stat", link);
        if (!process.keeps_plan && is_plan(area, state.inherited_plans))
            continue;
        if (is_segment && status.st_dev == state.system_v_device) {
            mapping.backing = Backing::kSystemV;
            mapping.object = static_cast<uint32_t>(status.st_ino);
            mapping.file_writable = area.flags.contains("mw");
            image.mappings.push_back(std::move(mapping));
            continue;
        }
        bool memory_file = target.starts_with("/memfd:") || target.starts_with("/dev/zero (deleted)");
        if (area.shared && memory_file) {
            mapping.backing = Backing::kSharedMemory;
            mapping.object = shared_memory_object(process, state, area, target);
            image.mappings.push_back(std::move(mapping));
            continue;
        }
        OwnPages own{0, {{area.run, watched}}, scan.private_pages(area.run)};
        own.anonymous = own.drop_zeroes = false;
        bool reachable = S_ISREG(status.st_mode) && !memory_file &&
                         is_reachable(state.init, target, status);
        if (area.shared && !reachable) {
            std::optional<uint32_t> nameless =
                nameless_file(process, link, target, area.flags.contains("mw"), state);
            if (!nameless)
                throw Refused(process.label, describe(area),
                              "its file cannot be opened by its name");
            mapping.nameless = *nameless;
        }
        OwnPart &part = own.parts.front();
        if (!area.shared)
            part.pool_extent = inherited_extent(state, {status.st_dev, status.st_ino});
        if (part.pool_extent) {
            mapping.offset = 0;
            part.pool_offset = area.offset;
            own.anonymous = own.drop_zeroes = state.inherited[*part.pool_extent].anonymous;
            own.max_gap_bytes = kMaxPoolGapBytes;
        } else if (reachable || mapping.nameless != kNoObject) {
            mapping.backing = Backing::kFile;
            mapping.path = target;
            mapping.file_writable = area.shared && area.flags.contains("mw");
        } else {
            // What can no longer be opened lives on as memory: all of it up to the file's end.
            mapping.offset = 0;
            own.anonymous = std::find(state.pool_extents.begin(), state.pool_extents.end(),
                                      FileIdentity{status.st_dev, status.st_ino}) !=
                            state.pool_extents.end();
            uint64_t file_end = (static_cast<uint64_t>(status.st_size) + kPageBytes - 1) &
                                ~(kPageBytes - 1);
            uint64_t mapped = file_end > area.offset ? file_end - area.offset : 0;
            own.watchable = false;
            own.drop_zeroes = true;
            own.pages.clear();
            if (mapped > 0)
                own.pages.push_back({area.run.start, std::min(area.run.end, area.run.start + mapped)});
        }
        if (area.shared)
            image.mappings.push_back(std::move(mapping));
        else
            add_private(image, all, std::move(mapping), std::move(own));
    }
    check_attachments(process, state, image);
    store_own_pages(process, state, image, scan, all, known);
    capture_layout(process, state, image.layout);
}

}  // namespace venus
