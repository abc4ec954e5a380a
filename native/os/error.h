// The one error type of the native code: which operation on which object failed, and why.
#pragma once

#include <cerrno>
#include <exception>
#include <optional>
#include <string>

namespace venus::os {

class Error : public std::exception {
 public:
  Error(std::string operation, std::string object, int error_number);

  const char* what() const noexcept override { return text_.c_str(); }
  const std::string& operation() const { return operation_; }
  const std::string& object() const { return object_; }
  int error_number() const { return error_number_; }

  // Index in the setup plan, when sandbox-init reported that an operation of it failed.
  std::optional<unsigned> op_index;

 private:
  std::string operation_;
  std::string object_;
  int error_number_;
  std::string text_;
};

// Throws Error with the current errno.
[[noreturn]] void fail(const char* operation, const std::string& object);

}  // namespace venus::os
