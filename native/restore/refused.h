// State of a sandbox that cannot be rebuilt: refused when it is captured, never dropped.
#pragma once

#include <stdexcept>
#include <string>

namespace venus {

class Refused : public std::runtime_error {
public:
    Refused(std::string process, std::string object, std::string reason)
        : std::runtime_error("cannot snapshot " + process + ": " + object + ": " + reason),
          process_(std::move(process)),
          object_(std::move(object)),
          reason_(std::move(reason))
    {
    }
    const std::string &process() const { return process_; }
    const std::string &object() const { return object_; }
    const std::string &reason() const { return reason_; }

    // The state ends by itself soon, if the sandbox goes on: worth another try.
    bool passes() const { return passes_; }
    Refused &&passing() &&
    {
        passes_ = true;
        return std::move(*this);
    }

private:
    std::string process_, object_, reason_;
    bool passes_ = false;
};

}  // namespace venus
