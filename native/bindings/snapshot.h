#pragma once

#include <pybind11/pybind11.h>

namespace venus::bindings {

void register_snapshot(pybind11::module_& module);

}  // namespace venus::bindings
