// Writes a restore plan: operations and their data at their final addresses.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "venus_restore_format.h"
#include "restore/image.h"

namespace venus {

// A pointer argument and a number look the same to the kernel; these say which is meant.
using Word = uint64_t;
inline Word word(int64_t value) { return static_cast<Word>(value); }

class PlanWriter;

class OpList {
public:
    OpList(PlanWriter &writer, uint32_t process) : writer_(writer), process_(process) {}

    // `object` is what the operation works on, for the failure report.
    void call(const std::string &object, long number, std::initializer_list<Word> arguments,
              int64_t expected = 0);
    void call_at_least(const std::string &object, long number,
                       std::initializer_list<Word> arguments, int64_t at_least);
    // For the few whose result says nothing about success.
    void call_unjudged(const std::string &object, long number,
                       std::initializer_list<Word> arguments);
    void add(const std::string &object, vr_kind kind, std::initializer_list<Word> arguments,
             int64_t expected = 0);
    void append(const OpList &other);

    PlanWriter &writer() { return writer_; }
    const std::vector<vr_op> &ops() const { return ops_; }
    bool empty() const { return ops_.empty(); }

private:
    void add_call(const std::string &object, vr_check check, long number,
                  std::initializer_list<Word> arguments, int64_t expected);
    vr_op &push(const std::string &object, std::initializer_list<Word> arguments);

    PlanWriter &writer_;
    uint32_t process_;
    std::vector<vr_op> ops_;
};

class PlanWriter {
public:
    // `prefix_bytes`: room for the runner and the tails, before the data.
    // `leave_out`: for tests of the tests; system calls whose object contains it are not written.
    PlanWriter(uint64_t base, uint64_t prefix_bytes, std::string leave_out);

    bool leaves_out(const std::string &object) const
    {
        return !leave_out_.empty() && object.find(leave_out_) != std::string::npos;
    }

    // Each returns the address that the bytes will have.
    Word data(const void *bytes, size_t size);
    Word data(const Bytes &bytes) { return data(bytes.data(), bytes.size()); }
    template <typename T>
    Word object(const T &value)
    {
        return data(&value, sizeof value);
    }
    Word text(const std::string &value);
    Word finish(const OpList &list);

    uint32_t text_offset(const std::string &value);
    void patch_prefix(uint64_t offset, const void *bytes, size_t size);
    uint64_t base() const { return base_; }
    const Bytes &bytes() const { return bytes_; }

private:
    uint64_t base_;
    std::string leave_out_;
    Bytes bytes_;
    std::map<std::string, Word> texts_;
};

}  // namespace venus
