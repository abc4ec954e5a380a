// Reading /proc of one process or thread, by host pid.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "os/fd.h"

namespace venus::proc {

// "/proc/<pid>/<name>"
std::string path(pid_t pid, const std::string &name);
std::string read_text(const std::string &path);
std::vector<uint8_t> read_bytes(const std::string &path);
std::string read_link(const std::string &path);
std::vector<std::string> list(const std::string &path);
std::vector<pid_t> list_numbers(const std::string &path);

// "Key:\tvalue" lines of status, fdinfo.
std::map<std::string, std::string> fields(const std::string &text);
// The fields of stat, numbered as in proc(5): [1] is the pid, [2] the name without parentheses.
std::vector<std::string> stat_fields(const std::string &text);
std::vector<std::string> split(const std::string &text, char separator);
// What `limits` says, by RLIMIT_ number. prlimit(2) would ask for a capability in the user namespace
// of the process, which not even its host's root need have.
std::array<rlimit64, RLIM_NLIMITS> limits(const std::string &text);
// Blank-separated words.
std::vector<std::string> words(const std::string &text);

}  // namespace venus::proc
