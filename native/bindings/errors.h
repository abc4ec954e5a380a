#pragma once

#include <pybind11/pybind11.h>

namespace venus::bindings {

// Adds NativeError to the module and translates os::Error into it. The only place where C++ errors
// become Python ones.
void register_errors(pybind11::module_& module);

}  // namespace venus::bindings
