#include "tracer/template_messages.h"

#include "tracer/capture_notes.h"

namespace venus {

void put_template(Message &message, const Template &captured)
{
    Bytes header = captured.save(false);
    message.put(std::string(header.begin(), header.end()));
    std::vector<int> descriptors = captured.descriptors();
    message.to_send.insert(message.to_send.end(), descriptors.begin(), descriptors.end());
    put_notes(message, {captured.huge_runs(), captured.times_ms()});
}

Template take_template(Message &message)
{
    std::string header = message.text();
    std::vector<os::UniqueFd> owned;
    std::vector<int> descriptors;
    while (message.fds_left() > 0) {
        owned.emplace_back(message.take_fd());
        descriptors.push_back(owned.back().get());
    }
    Template loaded = Template::load({header.begin(), header.end()}, descriptors, false);
    CaptureNotes notes = take_notes(message, descriptors.size() - 1);
    loaded.remember(std::move(notes.huge), std::move(notes.times_ms));
    return loaded;
}

}  // namespace venus
