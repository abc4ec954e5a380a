// Inference engines that batch continuously, as discrete events.  No Python, no clock, no system call.
//
// An engine works in segments: steps in which the same requests decode and prefill, so that their
// times have a closed form.  A segment ends when a turn or a prefill ends, when memory is full, or
// when something new might be admitted; between such events nothing is simulated step by step.
//
// As vLLM does: decoding comes first in each step and prefill fills the rest of the token budget in
// queue order; a request is admitted when its whole context fits; when decoding finds no free block,
// cached blocks go, then the last request in the queue's own order is preempted.
//
// A trajectory's blocks are a prefix of its context, and the whole blocks of its group's prompt are
// stored once per engine.  What is held is whole blocks: one that decodes takes the next when it
// crosses a boundary, and the block that it was filling is free again once it stops.  Blocks of
// trajectories that are not generating stay cached until somebody needs the room; the tail of a prefix
// goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace venus::simulate {

using std::size_t;

// Seconds and tokens; venusrl/simulate/hardware.py says where the numbers come from.
struct Model {
  double overhead_s = 0;   // per step
  double weights_s = 0;    // reading the weights once, per step
  double read_s = 0;       // reading the cached context, per step and token of it
  double compute_s = 0;    // per token that a step computes
  double attend_s = 0;     // per token that a step prefills and token before it
  double reload_s = 0;     // host to GPU, per token
  double writeback_s = 0;  // GPU to host, per token
  int64_t kv_capacity = 0;
  int64_t host_capacity = 0;
  int64_t step_tokens = 0;
  int64_t max_running = 0;
  int64_t block_tokens = 1;  // memory is taken, cached and found in whole blocks
};

struct Rules {
  bool by_rank = false;   // the queue is sorted by rank; otherwise by arrival
  bool by_level = false;  // eviction goes by level; otherwise by last use alone
  // A critical request may displace a running background one.  Not where a host tier lets memory be
  // overbooked: turns wait there as a matter of course, and each of them would swap a context.
  bool displace = false;
  double patience_s = 0;       // with a host tier: so long those who fit pass one who does not
  int64_t prefill_tokens = 0;  // of a step in which others decode; 0: all that step_tokens leaves
  // Tokens by which each turn under way can still grow when an engine which knows levels admits:
  // otherwise full memory would preempt what was admitted last, again and again.
  int64_t reserve_tokens = 128;
  int64_t evict_tokens = 64;  // by which each turn that decodes can grow once the cache gave way
};

enum Phase : int64_t { kEmpty, kWaiting, kLoading, kPrefill, kDecode, kTool, kDone };
enum Level : int64_t { kUnused, kLow, kHigh };

inline constexpr int64_t kNobody = -1;
inline constexpr double kNever = std::numeric_limits<double>::infinity();

// Per trajectory.  A row is used again once its group is trained.
struct Rows {
  explicit Rows(size_t count);
  std::vector<int64_t> phase, group, prompt, turns, turn, context, to_generate, to_prefill;
  std::vector<int64_t> kv, host;  // tokens held, a prefix of the context; of the idle, whole blocks
  std::vector<int64_t> arrival;   // order in which the waiting turns asked
  std::vector<double> since;      // when the phase began
  std::vector<double> used;       // when its blocks were last used
  // The decision.
  std::vector<int64_t> worker, rank, level, moved_turn;
  std::vector<uint8_t> admitted, critical;
  // The script, one entry per turn.
  std::vector<std::vector<int64_t>> generated, observed;
  std::vector<std::vector<double>> tool_s;
};

struct Counts {
  int64_t prefilled = 0;  // tokens computed by prefill, for whatever reason
  int64_t decoded = 0;
  int64_t reloaded = 0;
  int64_t written_back = 0;
  int64_t preempted = 0;  // running turns that lost their place
  int64_t asked = 0;      // tokens of context of the turns admitted
  int64_t hit = 0;        // of these, found on the GPU
  int64_t steps = 0;
  double busy_s = 0;
  double prefill_s = 0;   // of busy_s: by which prefill made steps longer
};

struct Engine {
  int64_t kv_used = 0, host_used = 0;
  std::vector<int64_t> prompt_users;  // per group: rows whose blocks hold its prompt
  std::vector<int64_t> members;       // rows that belong to it
  double segment_start = 0, segment_end = kNever;
  int64_t segment_steps = 0;
  double first_s = 0, more_s = 0;  // the first step's time; what each next one takes more
  int64_t chunk = 0;               // prefilled tokens per step
  double prefill_s = 0;            // by which they make it longer
  double reload_free = 0, writeback_free = 0;  // when the links are free
  Counts counts;
};

class Engines {
 public:
  Engines(const Model& model, const Rules& rules, size_t engines, size_t rows, size_t groups);

  // A new trajectory in an empty row; its first turn asks at once.
  void start(int64_t row, int64_t group, int64_t prompt, std::vector<int64_t> generated,
             std::vector<int64_t> observed, std::vector<double> tool_s);
  // The row is empty from now on, and all its blocks are gone.
  void retire(int64_t row);
  // Puts a decision for one row into effect; a row that generates keeps its worker.
  void place(int64_t row, bool critical, int64_t rank, bool admitted, int64_t level,
             int64_t worker);
  // Engines look at their queues again after the step under way.
  void placed();
  // Runs until the time is up or trajectories complete; returns how many did.
  int64_t advance(double until);

  double now() const { return now_; }
  Rows& rows() { return rows_; }
  const std::vector<Engine>& engines() const { return engines_; }

 private:
  struct Event {
    double time;
    int64_t row;
    bool operator>(const Event& other) const { return time > other.time; }
  };

  // cache.cc: what the memories hold, and who gives way.
  // Of so many tokens: what is in blocks that are filled, and what all their blocks take.
  int64_t whole_blocks(int64_t tokens) const { return tokens - tokens % model_.block_tokens; }
  int64_t held(int64_t tokens) const { return whole_blocks(tokens + model_.block_tokens - 1); }
  // The prompt's last block is each row's own, unless it is filled.
  int64_t shared(int64_t row) const { return whole_blocks(rows_.prompt[row]); }
  // What a context takes when it grows by so many tokens: nothing until it crosses a boundary.
  int64_t growth(int64_t context, int64_t tokens) const {
    return held(context + tokens) - held(context);
  }
  int64_t growth(const Engine& engine, int64_t tokens) const;
  int64_t steps_to_full(const Engine& engine) const;
  void set_kv(Engine& engine, int64_t row, int64_t tokens);
  void set_host(Engine& engine, int64_t row, int64_t tokens);
  int64_t room_needed(const Engine& engine, int64_t row) const;
  bool overbooked() const { return model_.host_capacity > 0; }
  bool keeps_rank(int64_t level) const;
  bool may_evict(int64_t row, int64_t claimant, int64_t level, int64_t rank) const;
  int64_t idle_victim(const Engine& engine, int64_t claimant, int64_t level, int64_t rank) const;
  int64_t idle_room(const Engine& engine, int64_t claimant) const;
  bool leaves_host_before(int64_t row, int64_t other) const;
  void write_back(Engine& engine, int64_t row);
  void shrink(Engine& engine, int64_t row, int64_t excess);
  void join(int64_t engine, int64_t row);
  void leave(int64_t row);

  // engines.cc: queues, segments, events.
  bool running(int64_t row) const;
  bool before(int64_t row, int64_t other) const;
  int64_t head(const Engine& engine, Phase phase) const;
  int64_t last_running(const Engine& engine, int64_t claimant) const;
  void preempt(Engine& engine, int64_t row);
  bool fit(Engine& engine, int64_t row);
  void admit(Engine& engine, int64_t row, bool wait_for_copies);
  void admit_waiting(Engine& engine);
  bool make_growth_room(Engine& engine);
  int64_t prefill_budget(int64_t decoding) const;
  void begin_segment(Engine& engine);
  void end_segment(Engine& engine);
  void end_turn(int64_t row);
  void interrupt(Engine& engine);
  void happen(int64_t row);
  void ask(int64_t row);
  void push(double time, int64_t row);

  Model model_;
  Rules rules_;
  Rows rows_;
  std::vector<Engine> engines_;
  std::vector<Event> events_;  // a heap; the row's phase says what happens
  double now_ = 0;
  int64_t arrivals_ = 0;
  int64_t completed_ = 0;
};

}  // namespace venus::simulate
