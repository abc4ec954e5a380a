#include "os/error.h"

#include <cstring>
#include <utility>

namespace venus::os {

Error::Error(std::string operation, std::string object, int error_number)
    : operation_(std::move(operation)), object_(std::move(object)), error_number_(error_number) {
  char buffer[128];
  text_ = operation_ + " " + object_ + ": " + strerror_r(error_number_, buffer, sizeof buffer);
}

void fail(const char* operation, const std::string& object) {
  int error_number = errno;  // before the strings below can change it
  throw Error(operation, object, error_number);
}

}  // namespace venus::os
