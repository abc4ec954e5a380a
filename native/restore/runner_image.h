#pragma once

#include "restore/image.h"

extern "C" const uint8_t venus_runner_image[], venus_runner_image_end[];

namespace venus {

inline Bytes runner_image() { return {venus_runner_image, venus_runner_image_end}; }

}  // namespace venus
