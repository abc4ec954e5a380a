// What a request for a capture and the answer to it hold besides headers and descriptors of templates.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capture/lineage.h"
#include "tracer/messages.h"

namespace venus {

// What the header of a template does not hold, see Template::remember.
struct CaptureNotes {
    std::vector<std::vector<PageRun>> huge;  // of each extent
    std::map<std::string, double> times_ms;
};

void put_notes(Message &message, const CaptureNotes &notes);
CaptureNotes take_notes(Message &message, size_t extents);
// Descriptors of the lineage are borrowed until the message is sent.
void put_lineage(Message &message, const Lineage &lineage);
Lineage take_lineage(Message &message);

}  // namespace venus
