#include <algorithm>

#include "simulate/engines.h"

namespace venus::simulate {

// What those who decode take when each grows by so many tokens.
int64_t Engines::growth(const Engine& engine, int64_t tokens) const {
  int64_t decoding = 0, total = 0;
  for (int64_t row : engine.members) decoding += rows_.phase[row] == kDecode;
  // Nothing is rounded: without this, simulating H100s would take a fifth longer.
  if (model_.block_tokens == 1) return decoding * tokens;
  for (int64_t row : engine.members)
    if (rows_.phase[row] == kDecode) total += growth(rows_.kv[row], tokens);
  return total;
}

// Steps until those that decode, of whom there are some, need a block that is not free.
int64_t Engines::steps_to_full(const Engine& engine) const {
  std::vector<int64_t> spare;  // of the blocks that each holds
  for (int64_t row : engine.members)
    if (rows_.phase[row] == kDecode) spare.push_back(held(rows_.kv[row]) - rows_.kv[row]);
  // In as many steps as a block has tokens each takes one; then those with the least left go first.
  auto decoding = static_cast<int64_t>(spare.size());
  int64_t blocks = (model_.kv_capacity - engine.kv_used) / model_.block_tokens;
  auto last = spare.begin() + blocks % decoding;
  std::nth_element(spare.begin(), last, spare.end());
  return blocks / decoding * model_.block_tokens + *last;
}

// Fewer tokens than the shared prompt are none: it is the group's, not the row's.
void Engines::set_kv(Engine& engine, int64_t row, int64_t tokens) {
  int64_t prompt = shared(row), before = rows_.kv[row];
  int64_t& users = engine.prompt_users[rows_.group[row]];
  if (tokens < prompt) tokens = 0;
  if (before > 0) {
    engine.kv_used -= held(before) - prompt;
    if (--users == 0) engine.kv_used -= prompt;
  }
  if (tokens > 0) {
    engine.kv_used += held(tokens) - prompt;
    if (++users == 1) engine.kv_used += prompt;
  }
  rows_.kv[row] = tokens;
}

void Engines::set_host(Engine& engine, int64_t row, int64_t tokens) {
  engine.host_used += tokens - rows_.host[row];
  rows_.host[row] = tokens;
}

// Tokens that the row's whole context would add to what the GPU holds.
int64_t Engines::room_needed(const Engine& engine, int64_t row) const {
  int64_t needed = held(rows_.context[row]);
  if (rows_.kv[row] > 0) return needed - rows_.kv[row];
  return engine.prompt_users[rows_.group[row]] == 0 ? needed : needed - shared(row);
}

bool Engines::may_evict(int64_t row, int64_t claimant, int64_t level, int64_t rank) const {
  if (row == claimant || rows_.kv[row] == 0 || running(row)) return false;
  if (!rules_.by_level) return true;
  if (rows_.level[row] != level) return rows_.level[row] < level;
  return !keeps_rank(level) || rows_.rank[row] > rank;
}

// Among blocks of level high rank protects, unless the host tier catches what goes.
bool Engines::keeps_rank(int64_t level) const {
  return level == kHigh && !overbooked();
}

// Whose cached blocks go first: by level, then last use.  Where rank protects, the worst rank goes,
// and only for a claimant of better rank: this is the controlled demotion, and it cannot go round in
// circles because ranks are strictly ordered.
int64_t Engines::idle_victim(const Engine& engine, int64_t claimant, int64_t level,
                             int64_t rank) const {
  int64_t best = kNobody;
  auto goes_before = [this](int64_t row, int64_t other) {
    if (rules_.by_level && rows_.level[row] != rows_.level[other])
      return rows_.level[row] < rows_.level[other];
    if (rules_.by_level && keeps_rank(rows_.level[row])) return rows_.rank[row] > rows_.rank[other];
    return rows_.used[row] < rows_.used[other];
  };
  for (int64_t row : engine.members)
    if (may_evict(row, claimant, level, rank) && (best == kNobody || goes_before(row, best)))
      best = row;
  return best;
}

// Tokens that idle_victim would find in all; prompts are counted as staying.
int64_t Engines::idle_room(const Engine& engine, int64_t claimant) const {
  int64_t room = 0;
  for (int64_t row : engine.members)
    if (may_evict(row, claimant, rows_.level[claimant], rows_.rank[claimant]))
      room += rows_.kv[row] - shared(row);
  return room;
}

// Where levels are known: what the GPU holds as well costs a copy to bring back, anything else a
// computation, the dearer the sooner it is due.
bool Engines::leaves_host_before(int64_t row, int64_t other) const {
  if (rows_.level[row] != rows_.level[other]) return rows_.level[row] < rows_.level[other];
  if (rules_.by_level) {
    bool twice = rows_.kv[row] >= rows_.host[row], other_twice = rows_.kv[other] >= rows_.host[other];
    if (twice != other_twice) return twice;
    if (!twice) return rows_.rank[row] > rows_.rank[other];
  }
  return rows_.used[row] < rows_.used[other];
}

// Copies what the host tier lacks of the row's blocks.  There the lowest level, then who was used
// longest ago, makes room.
void Engines::write_back(Engine& engine, int64_t row) {
  int64_t missing = rows_.kv[row] - rows_.host[row];
  if (missing <= 0 || rows_.kv[row] > model_.host_capacity) return;
  while (engine.host_used + missing > model_.host_capacity) {
    int64_t victim = kNobody;
    for (int64_t other : engine.members) {
      if (other == row || rows_.host[other] == 0) continue;
      if (victim == kNobody || leaves_host_before(other, victim)) victim = other;
    }
    if (victim == kNobody || rows_.level[victim] > rows_.level[row]) return;
    int64_t excess = engine.host_used + missing - model_.host_capacity;
    set_host(engine, victim, std::max<int64_t>(0, rows_.host[victim] - excess));
  }
  set_host(engine, row, rows_.kv[row]);
  engine.counts.written_back += missing;
  engine.writeback_free =
      std::max(now_, engine.writeback_free) + static_cast<double>(missing) * model_.writeback_s;
}

// Frees at least `excess` tokens of an idle row's blocks, or all of them, tail first.
void Engines::shrink(Engine& engine, int64_t row, int64_t excess) {
  if (model_.host_capacity > 0 && rows_.level[row] > kUnused && rows_.phase[row] != kDone)
    write_back(engine, row);
  set_kv(engine, row, whole_blocks(std::max<int64_t>(0, rows_.kv[row] - excess)));
}

void Engines::join(int64_t engine, int64_t row) {
  rows_.worker[row] = engine;
  engines_[engine].members.push_back(row);
}

void Engines::leave(int64_t row) {
  if (rows_.worker[row] < 0) return;
  Engine& engine = engines_[rows_.worker[row]];
  set_kv(engine, row, 0);
  set_host(engine, row, 0);
  std::erase(engine.members, row);
  rows_.worker[row] = kNobody;
}

}  // namespace venus::simulate
