// What the kernel answers about the Unix sockets of a sandbox.
#include "fuzz.h"
#include "os/unix_diag.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    venus::UnixSocketState state = venus::parse_unix_socket(bytes, size);
    REQUIRE(state.waiting.size() * sizeof(uint32_t) <= size);
    return 0;
}
