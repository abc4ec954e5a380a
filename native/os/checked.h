// Results of system calls as values or os::Error.
#pragma once

#include <string>

#include "os/error.h"

namespace venus {

template <typename Result>
Result checked(Result result, const char *operation, const std::string &object)
{
    if (result < 0)
        throw os::Error(operation, object, errno);
    return result;
}

}  // namespace venus
