#include "restore/plan_writer.h"

#include <string.h>

#include <algorithm>

namespace venus {

vr_op &OpList::push(const std::string &object, std::initializer_list<Word> arguments)
{
    vr_op op{};
    op.process = process_;
    op.object = writer_.text_offset(object);
    std::copy(arguments.begin(), arguments.end(), op.arg);
    ops_.push_back(op);
    return ops_.back();
}

void OpList::add_call(const std::string &object, vr_check check, long number,
                      std::initializer_list<Word> arguments, int64_t expected)
{
    if (writer_.leaves_out(object))
        return;
    vr_op &op = push(object, arguments);
    op.kind = VR_SYSCALL;
    op.check = static_cast<uint16_t>(check);
    op.number = static_cast<uint32_t>(number);
    op.expected = expected;
}

void OpList::call(const std::string &object, long number, std::initializer_list<Word> arguments,
                  int64_t expected)
{
    add_call(object, VR_EXACT, number, arguments, expected);
}

void OpList::call_at_least(const std::string &object, long number,
                           std::initializer_list<Word> arguments, int64_t at_least)
{
    add_call(object, VR_AT_LEAST, number, arguments, at_least);
}

void OpList::call_unjudged(const std::string &object, long number,
                           std::initializer_list<Word> arguments)
{
    add_call(object, VR_ANY, number, arguments, 0);
}

void OpList::add(const std::string &object, vr_kind kind, std::initializer_list<Word> arguments,
                 int64_t expected)
{
    vr_op &op = push(object, arguments);
    op.kind = static_cast<uint16_t>(kind);
    op.expected = expected;
}

void OpList::append(const OpList &other)
{
    ops_.insert(ops_.end(), other.ops_.begin(), other.ops_.end());
}

PlanWriter::PlanWriter(uint64_t base, uint64_t prefix_bytes, std::string leave_out)
    : base_(base), leave_out_(std::move(leave_out)), bytes_(prefix_bytes)
{
}

Word PlanWriter::data(const void *bytes, size_t size)
{
    bytes_.resize((bytes_.size() + 15) & ~size_t{15});
    Word address = base_ + bytes_.size();
    auto *first = static_cast<const uint8_t *>(bytes);
    bytes_.insert(bytes_.end(), first, first + size);
    return address;
}

Word PlanWriter::text(const std::string &value)
{
    auto known = texts_.find(value);
    if (known == texts_.end())
        known = texts_.emplace(value, data(value.c_str(), value.size() + 1)).first;
    return known->second;
}

uint32_t PlanWriter::text_offset(const std::string &value)
{
    return static_cast<uint32_t>(text(value) - base_);
}

Word PlanWriter::finish(const OpList &list)
{
    return data(list.ops().data(), list.ops().size() * sizeof(vr_op));
}

void PlanWriter::patch_prefix(uint64_t offset, const void *bytes, size_t size)
{
    memcpy(bytes_.data() + offset, bytes, size);
}

}  // namespace venus
