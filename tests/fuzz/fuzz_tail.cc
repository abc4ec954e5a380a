// The code at the instruction pointer of a stopped thread, which is memory of the sandbox.
#include "fuzz.h"
#include "restore/tail.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    venus::Bytes code(bytes, bytes + size);
    auto point = venus::resume_point(code, 0x7ffffffff000);
    if (point && point->argument) {
        user_regs_struct registers{};
        venus::argument_register(registers, *point->argument) = point->argument_value;
    }
    return 0;
}
