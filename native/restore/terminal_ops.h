// Pseudo-terminals under their old index, with their settings.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// Settings in which no byte means anything: what waits in a terminal can be read and put back.
Bytes quiet_settings(const Bytes &settings);
// As quiet as lines allow, if lines are what the terminal gives; and what is to be typed in it.
Bytes typing_settings(const Bytes &settings);
Bytes typed_input(const TerminalImage &terminal);
// Quiet, and output flows although somebody has stopped it (^S).
Bytes flowing_settings(const Bytes &settings);
// As much as may be written at once to a terminal that is to hold as much as it can.
constexpr size_t kTerminalPiece = 1000;
uint8_t stop_character(const TerminalImage &terminal);

void add_terminal_ops(const ProcessPlanContext &context, OpList &ops);
// In the leader of a session, before the objects are closed.
void add_controlling_terminal_ops(const ProcessImage &process, OpList &ops);
// When every group of the session exists.
void add_foreground_ops(const ProcessImage &process, OpList &ops);

}  // namespace venus
