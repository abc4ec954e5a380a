#include "os/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "os/checked.h"

namespace venus::proc {

std::string path(pid_t pid, const std::string &name)
{
    return "/proc/" + std::to_string(pid) + "/" + name;
}

std::vector<uint8_t> read_bytes(const std::string &path)
{
    os::UniqueFd fd(checked(open(path.c_str(), O_RDONLY | O_CLOEXEC), "open", path));
    std::vector<uint8_t> bytes;
    // Most files of /proc are short, and room costs the time to zero it.
    for (size_t room = 4096;; room = std::min<size_t>(2 * room, 65536)) {
        size_t filled = bytes.size();
        bytes.resize(filled + room);
        ssize_t count = read(fd.get(), bytes.data() + filled, room);
        bytes.resize(filled + static_cast<size_t>(std::max<ssize_t>(count, 0)));
        if (count < 0) {
            if (errno == EINTR)
                continue;
            throw os::Error("read", path, errno);
        }
        if (count == 0)
            return bytes;
    }
}

std::string read_text(const std::string &path)
{
    std::vector<uint8_t> bytes = read_bytes(path);
    return {bytes.begin(), bytes.end()};
}

std::string read_link(const std::string &path)
{
    char target[PATH_MAX];
    ssize_t length = checked(readlink(path.c_str(), target, sizeof target), "readlink", path);
    return {target, static_cast<size_t>(length)};
}

std::vector<std::string> list(const std::string &path)
{
    std::unique_ptr<DIR, int (*)(DIR *)> directory(opendir(path.c_str()), closedir);
    if (!directory)
        throw os::Error("opendir", path, errno);
    std::vector<std::string> names;
    while (dirent *entry = readdir(directory.get())) {
        std::string name = entry->d_name;
        if (name != "." && name != "..")
            names.push_back(name);
    }
    return names;
}

std::vector<pid_t> list_numbers(const std::string &path)
{
    std::vector<pid_t> numbers;
    for (const std::string &name : list(path))
        if (std::all_of(name.begin(), name.end(), [](unsigned char c) { return isdigit(c); }))
            numbers.push_back(std::stoi(name));
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

std::map<std::string, std::string> fields(const std::string &text)
{
    std::map<std::string, std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        size_t colon = line.find(':');
        if (colon == std::string::npos)
            continue;
        size_t value = line.find_first_not_of(" \t", colon + 1);
        found[line.substr(0, colon)] = value == std::string::npos ? "" : line.substr(value);
    }
    return found;
}

std::vector<std::string> words(const std::string &text)
{
    std::istringstream stream(text);
    std::vector<std::string> found;
    for (std::string word; stream >> word;)
        found.push_back(word);
    return found;
}

std::array<rlimit64, RLIM_NLIMITS> limits(const std::string &text)
{
    // A heading, then a line for each limit in the order of their numbers (fs/proc/base.c):
    // "%-25s %-20s %-20s %-10s", name, soft, hard, unit.
    constexpr size_t kSoft = 26, kHard = 47;
    auto value = [](const std::string &line, size_t at) {
        if (line.size() <= at)
            throw std::invalid_argument("a line of limits ends early: " + line);
        return line.compare(at, 9, "unlimited") == 0 ? RLIM64_INFINITY : std::stoull(line.substr(at));
    };
    std::array<rlimit64, RLIM_NLIMITS> found{};
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    for (rlimit64 &limit : found) {
        std::getline(lines, line);
        limit = {value(line, kSoft), value(line, kHard)};
    }
    return found;
}

std::vector<std::string> split(const std::string &text, char separator)
{
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);)
        parts.push_back(part);
    return parts;
}

std::vector<std::string> stat_fields(const std::string &text)
{
    // The name may contain anything, blanks and parentheses too: it ends at the last ')'.
    size_t open = text.find('('), close = text.rfind(')');
    std::vector<std::string> found = {"", text.substr(0, open - 1),
                                      text.substr(open + 1, close - open - 1)};
    for (std::string &word : words(text.substr(close + 1)))
        found.push_back(std::move(word));
    return found;
}

}  // namespace venus::proc
