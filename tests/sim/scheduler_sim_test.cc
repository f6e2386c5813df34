// Simulation of the scheduler with a fake clock and a fake model: seeded arrivals, aborts (between
// steps and during them), deadlines, NaN, page shortage, shared prefixes. The fake model keeps in
// every cache slot a digest of the tokens up to there, reads them back as attention would, and
// makes the next token from them. So a page that is reused too early, shared wrongly or written by
// two owners shows as a wrong digest, and a neighbour that changes anything as a wrong token. Some
// worlds keep the digests of the last tokens in a ring besides, or that of the last one as a state,
// as models with windows and compressors do; and some have drafts, right and wrong ones.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>

#include "fathom/base/rng.h"
#include "fathom/os/clock.h"
#include "fathom/runtime/scheduler.h"

namespace fathom {
namespace {

constexpr int kVocabulary = 50;

uint64_t mix(uint64_t digest, int32_t token) {
  const PhiloxBlock b = philox_block(digest, static_cast<uint64_t>(token), 7);
  return b.word[0] | uint64_t{b.word[1]} << 32;
}

uint64_t digest_of(const std::vector<int32_t>& tokens) {
  uint64_t d = 1;
  for (int32_t t : tokens)
    d = mix(d, t);
  return d;
}

int32_t next_token(uint64_t digest) {
  return static_cast<int32_t>(digest % kVocabulary);
}

struct Slot {
  uint64_t digest = 0;
  bool decoded = false;
};

// What a sequence keeps besides its pages: digests up to the last tokens, by position modulo size.
struct Ring {
  std::vector<uint64_t> digests;
};

struct Client {
  Sequence sequence;
  int64_t stop_after = 0;  // tokens until the fake end token; 0: never
  int64_t nan_after = 0;   // tokens until its logits are NaN; 0: never
  bool submitted = false;
  int64_t aborted_at_step = -1;
  int64_t tokens_after_abort = 0;
};

struct World {
  int64_t block_size;
  int64_t num_pages;
  int64_t num_slots;  // 0: no rings
  int64_t window;     // of a ring; a state is a ring of one
  int64_t slack;
  int64_t max_drafts;
  SchedulerOptions options;
  bool use_cache;
  int64_t num_requests;
  double abort_rate;
  double nan_rate;
  double deadline_rate;
  double arrival_rate;
};

World make_world(Rng& rng) {
  World w{};
  w.block_size = 1 + rng.next_below(8);
  w.num_pages = 3 + rng.next_below(40);
  w.options.max_num_seqs = 1 + rng.next_below(9);
  w.options.max_num_batched_tokens = w.options.max_num_seqs + rng.next_below(40);
  w.options.max_prefill_chunk = rng.next_below(3) == 0 ? 1 + rng.next_below(10) : 0;
  w.options.max_model_len = 10 + rng.next_below(150);
  w.options.max_queue = 1 + rng.next_below(30);
  w.options.max_waiting_tokens = 50 + rng.next_below(2000);
  w.options.preemption_limit = static_cast<int32_t>(rng.next_below(9));
  w.options.share_decoded_pages = rng.next_below(2) == 0;
  w.use_cache = rng.next_below(4) != 0;
  w.max_drafts = rng.next_below(2) == 0 ? 0 : 1 + rng.next_below(4);
  w.slack = INT64_MAX;
  if (rng.next_below(3) == 0) {
    w.num_slots = w.options.max_num_seqs + rng.next_below(20);
    w.window = 1 + rng.next_below(6);
    w.slack = rng.next_below(2) == 0 ? 0 : rng.next_below(5);
  }
  w.num_requests = 3 + rng.next_below(25);
  w.abort_rate = rng.next_below(2) == 0 ? 0.0 : 0.03;
  w.nan_rate = rng.next_below(3) == 0 ? 0.1 : 0.0;
  w.deadline_rate = rng.next_below(3) == 0 ? 0.3 : 0.0;
  w.arrival_rate = 0.1 + 0.9 * static_cast<double>(rng.next_uniform());
  return w;
}

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : rng_(seed, 99),
        world_(make_world(rng_)),
        pools_(world_.block_size, world_.slack, world_.num_pages, world_.num_slots),
        cache_(world_.use_cache
                   ? std::make_unique<PrefixCache>(
                         pools_,
                         PrefixDomain{
                             .model_fingerprint = "fake", .layout = "fake", .compute = "test"})
                   : nullptr),
        scheduler_(world_.options, pools_, cache_.get()),
        rings_(static_cast<size_t>(world_.num_slots)),
        slots_(static_cast<size_t>(world_.num_pages * world_.block_size)) {
    for (Ring& ring : rings_)
      ring.digests.resize(static_cast<size_t>(ring_size()));
    for (int64_t i = 0; i < world_.num_requests; ++i)
      clients_.push_back(make_client(i));
  }

  void run() {
    for (step_ = 0; !done(); ++step_) {
      ASSERT_LT(step_, step_bound()) << "the schedule does not end";
      arrive();
      abort_some(0.5);
      expire();
      one_step();
      if (testing::Test::HasFatalFailure() || testing::Test::HasFailure()) return;
      clock_.advance_ns(1 + rng_.next_below(1000));
    }
    EXPECT_EQ(pool_.num_private(), 0);
    EXPECT_EQ(pool_.num_owned(), 0);
    EXPECT_EQ(pools_.slots.num_private(), 0);
    EXPECT_EQ(pools_.slots.num_owned(), 0);
    check_results();
  }

  int64_t preemptions() const { return scheduler_.stats().num_preemptions; }

  int64_t hits() const { return cache_ ? cache_->stats().hit_tokens : 0; }

  int64_t nan_ends = 0;
  int64_t aborts = 0;
  int64_t full_ends = 0;
  int64_t timeouts = 0;
  int64_t refusals = 0;
  int64_t resumed = 0;
  int64_t right_drafts = 0;
  int64_t wrong_drafts = 0;

 private:
  int64_t ring_size() const { return world_.num_slots == 0 ? 0 : world_.window + world_.slack; }

  std::unique_ptr<Client> make_client(int64_t index) {
    auto c = std::make_unique<Client>();
    Sequence& s = c->sequence;
    s.id = static_cast<RequestId>(index);
    const bool is_long = rng_.next_below(4) == 0;
    s.prompt_length =
        1 + rng_.next_below(is_long ? static_cast<uint32_t>(world_.options.max_model_len) : 12);
    s.max_tokens = 1 + rng_.next_below(60);
    // A few families of prompts, so that prefixes are shared; two salts.
    const int32_t family = static_cast<int32_t>(rng_.next_below(3));
    for (int64_t i = 0; i < s.prompt_length; ++i) {
      s.tokens.push_back(static_cast<int32_t>((family * 13 + i * 7) % kVocabulary));
    }
    if (rng_.next_below(2) == 0)
      s.tokens.back() = static_cast<int32_t>(rng_.next_below(kVocabulary));
    s.cache_salt = rng_.next_below(4) == 0 ? "other" : "";
    if (rng_.next_below(3) == 0) c->stop_after = 1 + rng_.next_below(20);
    if (rng_.next_uniform() < world_.nan_rate) c->nan_after = 1 + rng_.next_below(10);
    return c;
  }

  bool done() const {
    for (const auto& c : clients_) {
      if (!c->submitted || c->sequence.state != SequenceState::kFinished) {
        if (!(c->submitted && c->sequence.state == SequenceState::kNew)) return false;
      }
    }
    return true;
  }

  // The oldest computes at least one token a step, so each request needs at most its tokens in
  // steps once it is the oldest. Arrivals add their own wait.
  int64_t step_bound() const {
    int64_t bound = 200 + world_.num_requests * 200;
    for (const auto& c : clients_)
      bound += c->sequence.prompt_length + c->sequence.max_tokens;
    return bound;
  }

  void arrive() {
    for (auto& c : clients_) {
      if (c->submitted || rng_.next_uniform() > world_.arrival_rate) continue;
      c->submitted = true;
      Sequence& s = c->sequence;
      if (rng_.next_uniform() < world_.deadline_rate) {
        s.deadline_ns = clock_.now_ns() + 1 + rng_.next_below(40'000);
        s.queue_deadline_ns = clock_.now_ns() + 1 + rng_.next_below(10'000);
      }
      const int64_t waiting = scheduler_.stats().num_waiting;
      const int64_t waiting_tokens = scheduler_.stats().waiting_tokens;
      const Status status = scheduler_.submit(s);
      const bool too_long = s.prompt_length + s.max_tokens > world_.options.max_model_len;
      const bool too_large =
          ceil_div<int64_t>(s.prompt_length + s.max_tokens, world_.block_size) > world_.num_pages;
      const bool full = waiting >= world_.options.max_queue ||
                        waiting_tokens + s.prompt_length > world_.options.max_waiting_tokens;
      EXPECT_EQ(status.ok(), !too_long && !too_large && !full) << status.message();
      if (!status.ok()) {
        ++refusals;
        EXPECT_EQ(status.code(),
                  too_long || too_large ? StatusCode::kInvalidArgument : StatusCode::kOverloaded);
      }
    }
  }

  void abort_some(double share) {
    for (auto& c : clients_) {
      if (rng_.next_uniform() >= world_.abort_rate * share) continue;
      Sequence& s = c->sequence;
      const bool alive = s.state == SequenceState::kWaiting || s.state == SequenceState::kRunning;
      const bool first = s.abort_reason == FinishReason::kNone;
      EXPECT_EQ(scheduler_.abort(s, FinishReason::kAborted), alive && first);
      EXPECT_FALSE(scheduler_.abort(s, FinishReason::kAborted)) << "aborts are idempotent";
      if (alive && first) c->aborted_at_step = step_;
    }
  }

  void expire() {
    std::vector<Scheduler::Expired> expired;
    scheduler_.find_expired(clock_.now_ns(), expired);
    for (const auto& e : expired) {
      EXPECT_TRUE(scheduler_.abort(*e.sequence, e.reason));
      EXPECT_EQ(e.sequence->state, SequenceState::kFinished);
    }
  }

  void one_step() {
    const std::vector<Sequence*> waiting_before = scheduler_.waiting();
    const Sequence* oldest = scheduler_.running().empty() ? nullptr : scheduler_.running().front();
    guess();
    const StepPlan& plan = scheduler_.plan();
    if (oldest != nullptr) {
      EXPECT_EQ(oldest->state, SequenceState::kRunning) << "the oldest is never preempted";
    }
    check_plan(plan, waiting_before);
    resumed += std::ranges::count_if(plan.slot_copies, [&](const SlotCopy& copy) {
      return pools_.slots.state(copy.from) == PageState::kShared;
    });
    for (const SlotCopy& copy : plan.slot_copies)
      rings_[static_cast<size_t>(copy.to)] = rings_[static_cast<size_t>(copy.from)];
    for (const StepItem& item : plan.prefill)
      compute(item, false);
    for (const StepItem& item : plan.decode)
      compute(item, true);
    abort_some(1.0);  // while the step is in flight
    for (const auto* items : {&plan.prefill, &plan.decode}) {
      for (const StepItem& item : *items) {
        EXPECT_LE(item.begin + item.count, capacity_of(*item.sequence))
            << "pages that a launched step refers to stay";
      }
    }
    for (const auto* items : {&plan.prefill, &plan.decode}) {
      for (const StepItem& item : *items)
        commit(item);
    }
    scheduler_.finish_step();
    check_state();
  }

  int64_t capacity_of(const Sequence& s) const {
    return static_cast<int64_t>(s.cache.blocks().size()) * world_.block_size;
  }

  // Drafts of decoding sequences: the tokens to come, with a wrong one somewhere, or too many.
  void guess() {
    for (Sequence* s : scheduler_.running()) {
      if (s->prefilling || world_.max_drafts == 0 || rng_.next_below(4) == 0) continue;
      std::vector<int32_t> tokens = s->tokens;
      const int64_t count = 1 + rng_.next_below(static_cast<uint32_t>(world_.max_drafts));
      for (int64_t i = 0; i < count; ++i) {
        const bool right = rng_.next_below(4) != 0;
        tokens.push_back(next_token(digest_of(tokens)) + (right ? 0 : 1));
        s->drafts.push_back(tokens.back());
      }
    }
  }

  void compute(const StepItem& item, bool decode) {
    const Sequence& s = *item.sequence;
    std::vector<int32_t> tokens = s.tokens;
    tokens.insert(tokens.end(), s.drafts.begin(), s.drafts.end());
    uint64_t digest = 1;
    for (int64_t p = 0; p < item.begin + item.count; ++p) {
      digest = mix(digest, tokens[static_cast<size_t>(p)]);
      const PageId page = s.cache.blocks()[static_cast<size_t>(p / world_.block_size)];
      Slot& slot = slots_[static_cast<size_t>(page * world_.block_size + p % world_.block_size)];
      if (p < item.begin) {  // what attention reads
        ASSERT_EQ(slot.digest, digest) << "request " << s.id << " position " << p;
      } else {
        ASSERT_EQ(pool_.state(page), PageState::kPrivate) << "writes go to private pages";
        slot = {digest, decode};
      }
      if (world_.num_slots > 0) visit_ring(item, p, digest);
    }
  }

  // Position p of a step: read if it stands before the step and in the window, else written.
  void visit_ring(const StepItem& item, int64_t p, uint64_t digest) {
    const PageId slot = item.sequence->cache.slot();
    ASSERT_EQ(pools_.slots.state(slot), PageState::kPrivate);
    uint64_t& row = rings_[static_cast<size_t>(slot)].digests[static_cast<size_t>(p % ring_size())];
    if (p >= item.begin) {
      if (item.begin + item.count - p <= ring_size()) row = digest;
    } else if (p >= item.begin - world_.window) {
      ASSERT_EQ(row, digest) << "request " << item.sequence->id << " ring at " << p;
    }
  }

  void commit(const StepItem& item) {
    Sequence& s = *item.sequence;
    Client& c = *clients_[static_cast<size_t>(s.id)];
    const bool aborted = s.abort_reason != FinishReason::kNone;
    const int64_t before = s.num_tokens();
    if (!item.yields_token) {
      scheduler_.commit(item, {}, FinishReason::kNone);
      EXPECT_EQ(s.num_tokens(), before);
      return;
    }
    // As many of the drafts as come out again, and one token more.
    const std::vector<int32_t> drafts = s.drafts;
    std::vector<int32_t> tokens = s.tokens;
    std::vector<int32_t> accepted;
    FinishReason finish = FinishReason::kNone;
    for (int64_t i = 0; i <= item.num_drafts() && finish == FinishReason::kNone; ++i) {
      const int64_t generated = s.num_generated() + i + 1;
      if (c.nan_after != 0 && generated >= c.nan_after) break;
      accepted.push_back(next_token(digest_of(tokens)));
      tokens.push_back(accepted.back());
      if (c.stop_after != 0 && generated >= c.stop_after) finish = FinishReason::kStop;
      if (generated == s.max_tokens) finish = FinishReason::kLength;
      if (i < item.num_drafts() && accepted.back() != drafts[static_cast<size_t>(i)]) break;
    }
    if (accepted.empty()) {
      scheduler_.commit_failed(item);
      return;
    }
    const auto count = static_cast<int64_t>(accepted.size());
    right_drafts += count - 1;
    wrong_drafts += item.num_drafts() - (count - 1);
    scheduler_.commit(item, accepted, finish);
    EXPECT_EQ(s.num_tokens(), before + (aborted ? 0 : count)) << "an aborted request gets no token";
    if (!aborted && finish == FinishReason::kNone) {
      EXPECT_EQ(s.num_computed, s.num_tokens() - 1);
      EXPECT_LT(capacity_of(s) - world_.block_size, s.num_computed + 1)
          << "the rest was given back";
    }
  }

  void check_plan(const StepPlan& plan, const std::vector<Sequence*>& waiting_before) {
    int64_t tokens = 0;
    std::map<const Sequence*, int> seen;
    for (const auto* items : {&plan.prefill, &plan.decode}) {
      for (const StepItem& item : *items) {
        tokens += item.count;
        EXPECT_EQ(++seen[item.sequence], 1) << "one item for each sequence";
        EXPECT_GT(item.count, 0);
        EXPECT_EQ(item.begin, item.sequence->num_computed);
        EXPECT_LE(item.begin + item.count, capacity_of(*item.sequence));
        EXPECT_EQ(item.yields_token,
                  item.begin + item.count - item.num_drafts() == item.sequence->num_tokens());
        EXPECT_LE(item.num_drafts(), world_.slack);
      }
    }
    EXPECT_EQ(tokens, plan.num_tokens);
    EXPECT_LE(tokens, world_.options.max_num_batched_tokens);
    EXPECT_LE(scheduler_.stats().num_running, world_.options.max_num_seqs);
    for (const StepItem& item : plan.decode)
      EXPECT_EQ(item.count, 1 + item.num_drafts());
    for (const StepItem& item : plan.prefill)
      EXPECT_EQ(item.num_drafts(), 0);
    if (!scheduler_.running().empty()) {
      const Sequence* oldest = scheduler_.running().front();
      EXPECT_EQ(seen.count(oldest), 1u) << "the oldest progresses";
    }
    for (const Sequence* s : scheduler_.running()) {
      EXPECT_TRUE(s->prefilling || seen.count(s) == 1) << "every decode has its token in each step";
    }
    // Admission takes a prefix of the queue.
    bool stayed = false;
    for (const Sequence* s : waiting_before) {
      const bool still_waiting = s->state == SequenceState::kWaiting;
      EXPECT_FALSE(stayed && !still_waiting) << "queue order";
      stayed |= still_waiting;
    }
  }

  void check_state() {
    for (const PagePool* pool : {&pool_, &pools_.slots}) {
      const Status right = pool->check_invariants();
      EXPECT_TRUE(right.ok()) << right.message();
    }
    std::map<PageId, int> owners;
    for (const auto& c : clients_) {
      const Sequence& s = c->sequence;
      for (PageId page : s.cache.blocks())
        ++owners[page];
      EXPECT_EQ(s.cache.empty(), s.state != SequenceState::kRunning)
          << "only running sequences own pages";
      if (c->aborted_at_step >= 0) {
        EXPECT_EQ(s.state, SequenceState::kFinished) << "aborted pages are free within 2 steps";
      }
      EXPECT_FALSE(s.in_flight);
    }
    for (const auto& [page, count] : owners)
      EXPECT_EQ(pool_.owners(page), count);
    EXPECT_EQ(static_cast<int64_t>(owners.size()), pool_.num_owned());
    for (const auto* list : {&scheduler_.running(), &scheduler_.waiting()}) {
      EXPECT_TRUE(std::ranges::is_sorted(*list, {}, &Sequence::order)) << "order of arrival";
    }
    if (!world_.options.share_decoded_pages) check_shared_pages();
    if (scheduler_.idle()) {
      EXPECT_EQ(pool_.num_private(), 0);
    }
  }

  void check_shared_pages() {
    for (PageId page = 0; page < pool_.num_pages(); ++page) {
      if (pool_.state(page) != PageState::kShared) continue;
      for (int64_t i = 0; i < world_.block_size; ++i) {
        EXPECT_FALSE(slots_[static_cast<size_t>(page * world_.block_size + i)].decoded)
            << "page " << page << " is shared, but has a decoded token";
      }
    }
  }

  // Each request alone, from the definition.
  void check_results() {
    for (const auto& c : clients_) {
      const Sequence& s = c->sequence;
      std::vector<int32_t> expected(s.tokens.begin(), s.tokens.begin() + s.prompt_length);
      while (static_cast<int64_t>(expected.size()) < s.num_tokens()) {
        expected.push_back(next_token(digest_of(expected)));
      }
      EXPECT_EQ(s.tokens, expected) << "request " << s.id;
      if (s.state == SequenceState::kNew) continue;  // refused
      const int64_t n = s.num_generated();
      switch (s.finish) {
        case FinishReason::kStop:
          EXPECT_EQ(n, c->stop_after);
          ++full_ends;
          break;
        case FinishReason::kLength:
          EXPECT_EQ(n, s.max_tokens);
          ++full_ends;
          break;
        case FinishReason::kNumericalError:
          EXPECT_EQ(n, c->nan_after - 1);
          ++nan_ends;
          break;
        case FinishReason::kAborted:
          EXPECT_GE(c->aborted_at_step, 0);
          ++aborts;
          break;
        case FinishReason::kQueueTimeout:
        case FinishReason::kRequestTimeout:
          EXPECT_NE(s.deadline_ns, 0);
          ++timeouts;
          break;
        case FinishReason::kNone:
        case FinishReason::kConstraintFault:
        case FinishReason::kEngineFault:
          ADD_FAILURE() << "request " << s.id << " has no reason";
      }
    }
  }

  Rng rng_;
  World world_;
  CachePools pools_;
  PagePool& pool_ = pools_.blocks;
  std::unique_ptr<PrefixCache> cache_;
  Scheduler scheduler_;
  std::vector<Ring> rings_;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Client>> clients_;
  ManualClock clock_{1};
  int64_t step_ = 0;
};

TEST(SchedulerSimulation, KeepsItsPromisesForEverySeed) {
#ifdef FATHOM_SANITIZED
  constexpr uint64_t kSeeds = 400;
#else
  constexpr uint64_t kSeeds = 5000;
#endif
  int64_t preemptions = 0;
  int64_t hits = 0;
  int64_t nan_ends = 0;
  int64_t aborts = 0;
  int64_t full_ends = 0;
  int64_t timeouts = 0;
  int64_t refusals = 0;
  int64_t resumed = 0;
  int64_t right_drafts = 0;
  int64_t wrong_drafts = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Simulation simulation(seed);
    simulation.run();
    if (HasFailure()) return;
    preemptions += simulation.preemptions();
    hits += simulation.hits();
    nan_ends += simulation.nan_ends;
    aborts += simulation.aborts;
    full_ends += simulation.full_ends;
    timeouts += simulation.timeouts;
    refusals += simulation.refusals;
    resumed += simulation.resumed;
    right_drafts += simulation.right_drafts;
    wrong_drafts += simulation.wrong_drafts;
  }
  // The worlds reach what they are meant to test.
  EXPECT_GT(preemptions, static_cast<int64_t>(kSeeds));
  EXPECT_GT(hits, static_cast<int64_t>(kSeeds));
  EXPECT_GT(nan_ends, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(aborts, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(timeouts, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(refusals, static_cast<int64_t>(kSeeds));
  EXPECT_GT(full_ends, static_cast<int64_t>(kSeeds));
  EXPECT_GT(resumed, static_cast<int64_t>(kSeeds / 10));
  EXPECT_GT(right_drafts, static_cast<int64_t>(kSeeds));
  EXPECT_GT(wrong_drafts, static_cast<int64_t>(kSeeds));
  RecordProperty("preemptions", std::to_string(preemptions));
}

}  // namespace
}  // namespace fathom
