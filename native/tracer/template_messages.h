// A template, in the answer to a capture.
#pragma once

#include "capture/template.h"
#include "tracer/messages.h"

namespace venus {

// Descriptors of the template are borrowed until the message is sent.
void put_template(Message &message, const Template &captured);
Template take_template(Message &message);

}  // namespace venus
