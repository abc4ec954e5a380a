#include "simulate/engines.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace venus::simulate {
namespace {

// A time that should be a whole number of steps may miss it by rounding.
constexpr double kStepSlack = 1e-9;

}  // namespace

Rows::Rows(size_t count)
    : phase(count, kEmpty),
      group(count), prompt(count), turns(count), turn(count), context(count), to_generate(count),
      to_prefill(count), kv(count), host(count), arrival(count), since(count), used(count),
      worker(count, kNobody), rank(count), level(count), moved_turn(count, -1), admitted(count),
      critical(count), generated(count), observed(count), tool_s(count) {}

Engines::Engines(const Model& model, const Rules& rules, size_t engines, size_t rows,
                 size_t groups)
    : model_(model), rules_(rules), rows_(rows), engines_(engines) {
  for (Engine& engine : engines_) engine.prompt_users.resize(groups);
}

void Engines::start(int64_t row, int64_t group, int64_t prompt, std::vector<int64_t> generated,
                    std::vector<int64_t> observed, std::vector<double> tool_s) {
  rows_.group[row] = group;
  rows_.prompt[row] = rows_.context[row] = prompt;
  rows_.turns[row] = static_cast<int64_t>(generated.size());
  rows_.turn[row] = rows_.to_prefill[row] = 0;
  rows_.moved_turn[row] = -1;
  rows_.admitted[row] = rows_.critical[row] = 0;
  rows_.generated[row] = std::move(generated);
  rows_.observed[row] = std::move(observed);
  rows_.tool_s[row] = std::move(tool_s);
  ask(row);
}

void Engines::retire(int64_t row) {
  // A tool that is still at work is forgotten with its row.
  std::erase_if(events_, [row](const Event& event) { return event.row == row; });
  std::make_heap(events_.begin(), events_.end(), std::greater<>{});
  if (running(row)) {
    Engine& engine = engines_[rows_.worker[row]];
    interrupt(engine);
  }
  rows_.phase[row] = kEmpty;
  leave(row);
}

void Engines::place(int64_t row, bool critical, int64_t rank, bool admitted, int64_t level,
                    int64_t worker) {
  rows_.critical[row] = critical;
  rows_.rank[row] = rank;
  rows_.admitted[row] = admitted;
  rows_.level[row] = level;
  if (worker == rows_.worker[row] || running(row)) return;
  if (rows_.worker[row] >= 0) {
    rows_.moved_turn[row] = rows_.turn[row];
    leave(row);
  }
  if (worker >= 0) join(worker, row);
}

void Engines::placed() {
  for (Engine& engine : engines_)
    if (head(engine, kWaiting) != kNobody) interrupt(engine);
}

int64_t Engines::advance(double until) {
  completed_ = 0;
  while (completed_ == 0) {
    auto next = std::min_element(
        engines_.begin(), engines_.end(),
        [](const Engine& a, const Engine& b) { return a.segment_end < b.segment_end; });
    double time = next->segment_end;
    if (!events_.empty() && events_.front().time < time) {
      if (events_.front().time > until) break;
      now_ = events_.front().time;
      std::pop_heap(events_.begin(), events_.end(), std::greater<>{});
      int64_t row = events_.back().row;
      events_.pop_back();
      happen(row);
      continue;
    }
    if (time == kNever || time > until) break;
    now_ = time;
    end_segment(*next);
    // Whoever decides sees a completion before the engine goes on: its segment ends again, now.
    if (completed_ > 0) return completed_;
    if (make_growth_room(*next)) {
      admit_waiting(*next);
      make_growth_room(*next);
    }
    begin_segment(*next);
  }
  if (until != kNever) now_ = std::max(now_, until);
  return completed_;
}

bool Engines::running(int64_t row) const {
  return rows_.phase[row] >= kLoading && rows_.phase[row] <= kDecode;
}

// The queue's own order, which is also the order of victims.
bool Engines::before(int64_t row, int64_t other) const {
  if (rules_.by_rank && rows_.rank[row] != rows_.rank[other])
    return rows_.rank[row] < rows_.rank[other];
  return rows_.arrival[row] < rows_.arrival[other];
}

// The first row of the engine in this phase; of the waiting, the first that is admitted.
int64_t Engines::head(const Engine& engine, Phase phase) const {
  int64_t best = kNobody;
  for (int64_t row : engine.members) {
    if (rows_.phase[row] != phase || (phase == kWaiting && !rows_.admitted[row])) continue;
    if (best == kNobody || before(row, best)) best = row;
  }
  return best;
}

// The last row in queue order that prefills or decodes; for a claimant, a background one behind it.
int64_t Engines::last_running(const Engine& engine, int64_t claimant) const {
  int64_t worst = kNobody;
  for (int64_t row : engine.members) {
    if (rows_.phase[row] != kPrefill && rows_.phase[row] != kDecode) continue;
    if (claimant != kNobody && (rows_.critical[row] || !before(claimant, row))) continue;
    if (worst == kNobody || before(worst, row)) worst = row;
  }
  return worst;
}

// Back to the queue; the blocks that it filled stay cached until somebody needs the room.
void Engines::preempt(Engine& engine, int64_t row) {
  int64_t left = rows_.phase[row] == kPrefill ? rows_.to_prefill[row] : 0;
  set_kv(engine, row, whole_blocks(rows_.context[row] - left));
  rows_.phase[row] = kWaiting;
  rows_.since[row] = now_;
  engine.counts.preempted++;
}

// Makes room for the row's whole context, and for those that decode to grow.
bool Engines::fit(Engine& engine, int64_t row) {
  bool anybody = std::any_of(engine.members.begin(), engine.members.end(),
                             [this](int64_t member) { return running(member); });
  // One that is alone needs no more than its context, or it might never run.
  int64_t each = rules_.by_level && anybody ? rules_.reserve_tokens : 1;
  int64_t reserve = growth(engine, each) + growth(rows_.context[row], each);
  auto missing = [&] {
    return room_needed(engine, row) + reserve + engine.kv_used - model_.kv_capacity;
  };
  if (anybody && missing() > idle_room(engine, row)) return false;
  while (missing() > 0) {
    int64_t victim = idle_victim(engine, row, rows_.level[row], rows_.rank[row]);
    if (victim == kNobody) return false;
    shrink(engine, victim, missing());
  }
  return true;
}

void Engines::admit(Engine& engine, int64_t row, bool wait_for_copies) {
  int64_t context = rows_.context[row], hit = rows_.kv[row];
  if (hit == 0 && engine.prompt_users[rows_.group[row]] > 0) hit = shared(row);
  int64_t loaded = std::max(hit, std::min(rows_.host[row], context));
  engine.counts.asked += context;
  engine.counts.hit += hit;
  set_kv(engine, row, context);
  // The last token's block is always computed: the token's logits start the generation.
  rows_.to_prefill[row] = loaded < context ? context - loaded : model_.block_tokens;
  rows_.used[row] = rows_.since[row] = now_;
  // Blocks that are still being copied out cannot be filled yet.
  double ready = wait_for_copies ? std::max(now_, engine.writeback_free) : now_;
  if (loaded > hit) {
    engine.counts.reloaded += loaded - hit;
    ready = std::max(ready, engine.reload_free) + static_cast<double>(loaded - hit) * model_.reload_s;
    engine.reload_free = ready;
  }
  rows_.phase[row] = ready > now_ ? kLoading : kPrefill;
  if (ready > now_) push(ready, row);
}

void Engines::admit_waiting(Engine& engine) {
  auto count = std::count_if(engine.members.begin(), engine.members.end(),
                             [this](int64_t row) { return running(row); });
  std::vector<int64_t> queue;
  for (int64_t row : engine.members)
    if (rows_.phase[row] == kWaiting && rows_.admitted[row]) queue.push_back(row);
  std::sort(queue.begin(), queue.end(),
            [this](int64_t row, int64_t other) { return before(row, other); });
  for (size_t next = 0; next < queue.size() && count < model_.max_running;) {
    int64_t row = queue[next];
    double copied = engine.writeback_free;
    if (fit(engine, row)) {
      admit(engine, row, engine.writeback_free > copied);
      count++;
      next++;
      continue;
    }
    int64_t victim =
        rules_.displace && !overbooked() && rows_.critical[row] ? last_running(engine, row)
                                                                : kNobody;
    if (victim != kNobody) {
      preempt(engine, victim);
      count--;
    } else if (overbooked() && now_ - rows_.since[row] < rules_.patience_s) {
      next++;
    } else {
      return;
    }
  }
}

// Room for all that decode to grow by a token; false if somebody had to be preempted for it.
bool Engines::make_growth_room(Engine& engine) {
  bool nobody = true;
  while (true) {
    int64_t free = model_.kv_capacity - engine.kv_used;
    if (free >= growth(engine, 1)) return nobody;
    int64_t cached = idle_victim(engine, kNobody, kHigh, -1);
    int64_t last = last_running(engine, kNobody);
    // Among blocks that are to be kept, the last in rank gives way, running or not.
    bool running_goes = cached == kNobody ||
                        (rules_.by_level && keeps_rank(rows_.level[cached]) && last != kNobody &&
                         rows_.rank[last] > rows_.rank[cached]);
    if (running_goes) {
      preempt(engine, last);
      nobody = false;
    } else {
      shrink(engine, cached, growth(engine, rules_.evict_tokens) - free);
    }
  }
}

// Few tokens are computed while the weights are read, and cost those who decode nothing.
int64_t Engines::prefill_budget(int64_t decoding) const {
  int64_t left = model_.step_tokens - decoding;
  return decoding > 0 && rules_.prefill_tokens > 0 ? std::min(left, rules_.prefill_tokens) : left;
}

void Engines::begin_segment(Engine& engine) {
  int64_t decoding = 0, context = 0, pending = 0, steps = std::numeric_limits<int64_t>::max();
  double attended = 0;  // tokens to prefill, each times the tokens before it
  for (int64_t row : engine.members) {
    if (rows_.phase[row] == kDecode) {
      decoding++;
      context += rows_.context[row];
      steps = std::min(steps, rows_.to_generate[row]);
    } else if (rows_.phase[row] == kPrefill) {
      auto tokens = static_cast<double>(rows_.to_prefill[row]);
      pending += rows_.to_prefill[row];
      attended += tokens * (static_cast<double>(rows_.context[row]) - tokens / 2);
    }
  }
  engine.segment_start = now_;
  engine.segment_steps = engine.chunk = 0;
  engine.segment_end = kNever;
  if (decoding == 0 && pending == 0) return;
  // None takes more than a context of so many tokens would.
  if (decoding > 0 && decoding * held(steps) > model_.kv_capacity - engine.kv_used)
    steps = std::min(steps, steps_to_full(engine));
  if (pending > 0) {
    engine.chunk = std::min(pending, prefill_budget(decoding));
    int64_t first = head(engine, kPrefill), left = rows_.to_prefill[first];
    auto chunk = static_cast<double>(engine.chunk);
    if (left > engine.chunk) {
      steps = std::min(steps, left / engine.chunk);
      attended = chunk * (static_cast<double>(rows_.context[first] - left) +
                          chunk * static_cast<double>(steps) / 2);
    } else {
      steps = 1;
      attended *= chunk / static_cast<double>(pending);
    }
  }
  // The linear layers read the weights while they compute; attention comes after them, layer by
  // layer, and reads the context of what decodes and computes over that of what prefills.
  double linear = std::max(model_.weights_s,
                           static_cast<double>(decoding + engine.chunk) * model_.compute_s);
  double attention =
      static_cast<double>(context) * model_.read_s + attended * model_.attend_s;
  auto count = static_cast<double>(steps);
  engine.segment_steps = steps;
  engine.prefill_s = linear + attended * model_.attend_s -
                     std::max(model_.weights_s, static_cast<double>(decoding) * model_.compute_s);
  engine.first_s = model_.overhead_s + linear + attention;
  engine.more_s = static_cast<double>(decoding) * model_.read_s;
  engine.segment_end =
      now_ + count * engine.first_s + engine.more_s * count * (count - 1) / 2;
}

void Engines::end_segment(Engine& engine) {
  int64_t steps = std::exchange(engine.segment_steps, 0);
  if (steps == 0) return;
  engine.counts.busy_s += now_ - engine.segment_start;
  engine.counts.steps += steps;
  engine.counts.prefill_s += static_cast<double>(steps) * engine.prefill_s;
  for (int64_t row : engine.members) {
    if (rows_.phase[row] != kDecode) continue;
    rows_.to_generate[row] -= steps;
    rows_.context[row] += steps;
    engine.kv_used += growth(rows_.kv[row], steps);
    rows_.kv[row] += steps;
    engine.counts.decoded += steps;
    rows_.used[row] = now_;
    if (rows_.to_generate[row] == 0) end_turn(row);
  }
  for (int64_t left = steps * engine.chunk; left > 0;) {
    int64_t row = head(engine, kPrefill);
    if (row == kNobody) break;
    int64_t tokens = std::min(left, rows_.to_prefill[row]);
    left -= tokens;
    rows_.to_prefill[row] -= tokens;
    engine.counts.prefilled += tokens;
    if (rows_.to_prefill[row] == 0) rows_.phase[row] = kDecode;
  }
}

void Engines::end_turn(int64_t row) {
  int64_t turn = rows_.turn[row]++;
  Engine& engine = engines_[rows_.worker[row]];
  set_kv(engine, row, whole_blocks(rows_.kv[row]));
  rows_.since[row] = now_;
  if (rows_.turn[row] < rows_.turns[row]) {
    rows_.phase[row] = kTool;
    push(now_ + rows_.tool_s[row][turn], row);
    return;
  }
  rows_.phase[row] = kDone;
  rows_.level[row] = kUnused;
  set_host(engine, row, 0);
  completed_++;
}

// Ends the engine's segment with the step under way, so that it looks at its queue again.
void Engines::interrupt(Engine& engine) {
  if (engine.segment_steps == 0) {
    engine.segment_start = engine.segment_end = now_;
    return;
  }
  double passed = now_ - engine.segment_start, first = engine.first_s, more = engine.more_s;
  double count = passed / first;
  if (more > 0) {
    // passed = count first + more count (count - 1) / 2
    double half = first - more / 2;
    count = (std::sqrt(half * half + 2 * more * passed) - half) / more;
  }
  auto steps = static_cast<int64_t>(std::ceil(count - kStepSlack));
  engine.segment_steps = std::clamp<int64_t>(steps, 1, engine.segment_steps);
  count = static_cast<double>(engine.segment_steps);
  engine.segment_end =
      std::max(now_, engine.segment_start + count * first + more * count * (count - 1) / 2);
}

// A tool returns, or blocks are loaded.
void Engines::happen(int64_t row) {
  if (rows_.phase[row] == kLoading) {
    rows_.phase[row] = kPrefill;
    interrupt(engines_[rows_.worker[row]]);
    return;
  }
  rows_.context[row] += rows_.observed[row][rows_.turn[row] - 1];
  ask(row);
  if (rows_.admitted[row]) interrupt(engines_[rows_.worker[row]]);
}

void Engines::ask(int64_t row) {
  rows_.phase[row] = kWaiting;
  rows_.to_generate[row] = rows_.generated[row][rows_.turn[row]];
  rows_.arrival[row] = arrivals_++;
  rows_.since[row] = now_;
}

void Engines::push(double time, int64_t row) {
  events_.push_back({time, row});
  std::push_heap(events_.begin(), events_.end(), std::greater<>{});
}

}  // namespace venus::simulate
