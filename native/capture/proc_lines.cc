#include "capture/proc_lines.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "os/proc.h"

namespace venus {
namespace {

void parse_time(const std::string &text, uint64_t *seconds_and_nanoseconds)
{
    if (sscanf(text.c_str(), "(%lu, %lu)", &seconds_and_nanoseconds[0],
               &seconds_and_nanoseconds[1]) != 2)
        throw std::invalid_argument("a time of a timer: " + text);
}

std::string next_line(std::istringstream &lines)
{
    std::string line;
    if (!std::getline(lines, line))
        throw std::invalid_argument("a timer's lines end early");
    return line;
}

}  // namespace

std::vector<LockLine> lock_lines(const std::string &fdinfo)
{
    constexpr size_t kKind = 2, kState = 3, kAccess = 4, kStart = 7, kEnd = 8;
    std::vector<LockLine> found;
    std::istringstream lines(fdinfo);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("lock:"))
            continue;
        std::vector<std::string> words = proc::words(line);
        uint64_t start = std::stoull(words.at(kStart));
        uint64_t length = words.at(kEnd) == "EOF" ? 0 : std::stoull(words.at(kEnd)) - start + 1;
        found.push_back(
            {words.at(kKind), words.at(kState), words.at(kAccess) == "WRITE", start, length});
    }
    return found;
}

std::vector<TargetLine> target_lines(const std::string &fdinfo)
{
    std::vector<TargetLine> found;
    std::istringstream lines(fdinfo);
    for (std::string line; std::getline(lines, line);) {
        TargetLine target{};
        if (sscanf(line.c_str(), "tfd: %d events: %x data: %lx", &target.number, &target.events,
                   &target.data) == 3)
            found.push_back(target);
    }
    return found;
}

TimerLines timer_lines(const std::string &fdinfo)
{
    std::map<std::string, std::string> fields = proc::fields(fdinfo);
    TimerLines timer{};
    timer.clock = std::stoi(fields.at("clockid"));
    timer.ticks = std::stoull(fields.at("ticks"));
    timer.settime_flags = static_cast<int>(std::stol(fields.at("settime flags"), nullptr, 8));
    parse_time(fields.at("it_interval"), timer.spec);
    parse_time(fields.at("it_value"), timer.spec + 2);
    return timer;
}

std::vector<PosixTimerLines> posix_timer_lines(const std::string &timers)
{
    static const std::map<std::string, int> kinds = {
        {"signal", SIGEV_SIGNAL}, {"none", SIGEV_NONE}, {"thread", SIGEV_THREAD}};
    std::vector<PosixTimerLines> found;
    std::istringstream lines(timers);
    for (std::string line; std::getline(lines, line);) {
        PosixTimerLines timer{};
        char kind[16], target[8];
        int host_tid = 0;
        if (sscanf(line.c_str(), "ID: %d", &timer.id) != 1)
            throw std::invalid_argument("a line of a timer: " + line);
        sscanf(next_line(lines).c_str(), "signal: %d/%lx", &timer.signal, &timer.value);
        line = next_line(lines);
        if (sscanf(line.c_str(), "notify: %15[a-z]/%7[a-z].%d", kind, target, &host_tid) != 3)
            throw std::invalid_argument("a line of a timer: " + line);
        sscanf(next_line(lines).c_str(), "ClockID: %d", &timer.clock);
        timer.notify = kinds.at(kind);
        timer.host_tid = strcmp(target, "tid") == 0 ? host_tid : 0;
        found.push_back(timer);
    }
    return found;
}

std::vector<std::map<std::string, std::string>> table_rows(const std::string &text)
{
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    std::vector<std::string> names = proc::words(line);
    std::vector<std::map<std::string, std::string>> rows;
    while (std::getline(lines, line)) {
        std::vector<std::string> words = proc::words(line);
        std::map<std::string, std::string> row;
        for (size_t i = 0; i < std::min(names.size(), words.size()); i++)
            row[names[i]] = words[i];
        rows.push_back(std::move(row));
    }
    return rows;
}

std::map<std::string, MountLine> mount_lines(const std::string &mountinfo)
{
    // id parent device root mountpoint options [tags] - type source super-options
    constexpr size_t kRoot = 3, kMountPoint = 4, kOptions = 5;
    std::map<std::string, MountLine> found;
    std::istringstream lines(mountinfo);
    for (std::string line; std::getline(lines, line);) {
        std::vector<std::string> words = proc::words(line);
        auto dash = std::find(words.begin(), words.end(), "-");
        if (words.size() <= kOptions || dash == words.end() || dash + 1 == words.end())
            continue;
        // A later mount at the same place hides the one below from every path.
        found[words[kMountPoint]] = {words[kRoot], *(dash + 1), words[kOptions].starts_with("ro")};
    }
    return found;
}

}  // namespace venus
