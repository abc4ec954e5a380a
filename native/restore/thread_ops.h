// Operations that give a thread its own state back.
#pragma once

#include "restore/layout.h"
#include "restore/plan_writer.h"

namespace venus {

// While all capabilities are still there.
void add_thread_ops(const ThreadImage &thread, OpList &ops);
// Before the threads are made: they inherit it.
void add_bounding_set_ops(const ProcessImage &process, OpList &ops);
// Ids, capabilities, no_new_privs.
void add_credential_ops(const ThreadImage &thread, OpList &ops);
// pre: helpers that stood in for a parent have ended, credentials are final (they clear it).
void add_death_signal_ops(const ThreadImage &thread, OpList &ops);
void add_pending_signal_ops(const ProcessImage &process, const ThreadImage &thread, OpList &ops);

}  // namespace venus
