// What every function of the flat modules promises: a bad size, scalar, budget, buffer or index
// gets the status of its rule, in the documented order, and not a byte of an output changes.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "flashlane/flat.h"
#include "tests/support/flat_calls.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

class FlatRefusalTest : public ::testing::TestWithParam<FlatFunction> {
 protected:
  // Runs the call, which must be refused with `status`.
  static void ExpectRefused(FlatCall& call, AttnStatus status, const std::string& why) {
    const FlatFunction& function = GetParam();
    const AttnStatus got = function.run(call);
    EXPECT_EQ(got, status) << why << ": " << attn_status_name(got) << ", not "
                           << attn_status_name(status);
    for (const SlotMember output : function.outputs) {
      EXPECT_TRUE((call.*output).Untouched()) << why;
    }
  }

  static std::vector<SlotMember> AllBuffers() {
    std::vector<SlotMember> all = GetParam().inputs;
    all.insert(all.end(), GetParam().outputs.begin(), GetParam().outputs.end());
    return all;
  }

  // The smallest limit that the call accepts.
  static uint64_t Needs(uint64_t FlatOptions::*limit) {
    uint64_t low = 0, high = uint64_t{1} << 40;
    while (low < high) {
      FlatCall call;
      const uint64_t middle = (low + high) / 2;
      call.options.*limit = middle;
      GetParam().run(call) == ATTN_OK ? high = middle : low = middle + 1;
    }
    return low;
  }
};

TEST_P(FlatRefusalTest, AGoodCallWritesItsOutputsAndNothingElse) {
  FlatCall call;
  ASSERT_EQ(GetParam().run(call), ATTN_OK);
  for (const SlotMember output : GetParam().outputs) {
    const FlatSlot& slot = call.*output;
    EXPECT_TRUE(slot.UntouchedBeyond());
    for (int64_t i = 0; i < slot.size; ++i) {
      EXPECT_NE(slot.storage[static_cast<size_t>(i)], FlatSlot::kSentinel) << i;
    }
  }
}

TEST_P(FlatRefusalTest, SizesAndScalars) {
  EXPECT_FALSE(GetParam().rules.empty());
  for (const FlatRule& rule : GetParam().rules) {
    FlatCall call;
    rule.breaks(call);
    ExpectRefused(call, rule.status, rule.name);
  }
}

TEST_P(FlatRefusalTest, Contents) {
  for (const FlatRule& rule : GetParam().contents) {
    FlatCall call;
    rule.breaks(call);
    ExpectRefused(call, rule.status, rule.name);
  }
}

TEST_P(FlatRefusalTest, Buffers) {
  const std::vector<SlotMember> buffers = AllBuffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    const std::string which = "buffer " + std::to_string(i);
    FlatCall null, negative, misaligned;
    (null.*buffers[i]).data = nullptr;
    ExpectRefused(null, ATTN_NULL_BUFFER, which + " null");
    (negative.*buffers[i]).size = -1;
    ExpectRefused(negative, ATTN_SHORT_BUFFER, which + " negative");
    FlatSlot& slot = misaligned.*buffers[i];
    slot.data = static_cast<char*>(slot.data) + 4;
    ExpectRefused(misaligned, ATTN_MISALIGNED_BUFFER, which + " misaligned");
  }
}

// One element short. Buffers that say how many elements there are make another rule true:
// tables have fewer rows, so that a position is none of theirs; cu_seqlens fewer sequences.
TEST_P(FlatRefusalTest, ShortBuffers) {
  for (const SlotMember buffer : AllBuffers()) {
    FlatCall call;
    (call.*buffer).size -= 1;
    const bool table = buffer == &FlatCall::cos_t || buffer == &FlatCall::sin_t;
    const bool lengths = buffer == &FlatCall::cu_seqlens_q || buffer == &FlatCall::cu_seqlens_k;
    ExpectRefused(call,
                  table     ? ATTN_BAD_POSITION
                  : lengths ? ATTN_BAD_LENGTH
                            : ATTN_SHORT_BUFFER,
                  "one short");
    if (buffer == &FlatCall::bias || buffer == &FlatCall::lse) continue;  // empty: left out
    FlatCall empty;
    (empty.*buffer).size = 0;
    ExpectRefused(empty, ATTN_SHORT_BUFFER, "empty");
  }
}

TEST_P(FlatRefusalTest, Overlap) {
  for (const SlotMember output : GetParam().outputs) {
    for (const SlotMember other : AllBuffers()) {
      if (other == output) continue;
      // The last byte of the other is the first of this. (Exactly the input may be allowed.)
      FlatCall call;
      const FlatSlot& taken = call.*other;
      (call.*output).data = static_cast<double*>(taken.data) + taken.size - 1;
      ExpectRefused(call, ATTN_BUFFER_OVERLAP, "overlap");
      // Side by side is fine.
      (call.*output).data = static_cast<double*>(taken.data) + taken.size;
      EXPECT_EQ(GetParam().run(call), ATTN_OK);
    }
  }
}

TEST_P(FlatRefusalTest, Budget) {
  for (const bool flops : {true, false}) {
    const auto limit = flops ? &FlatOptions::max_flops : &FlatOptions::max_bytes;
    const AttnStatus status = flops ? ATTN_OVER_FLOPS : ATTN_OVER_BYTES;
    const uint64_t needs = Needs(limit);
    ASSERT_GT(needs, 0u);
    FlatCall below, enough;
    below.options.*limit = needs - 1;
    ExpectRefused(below, status, "one below");
    enough.options.*limit = needs;
    EXPECT_EQ(GetParam().run(enough), ATTN_OK);
    if (flops) continue;
    uint64_t bytes = 0;  // operands and results at least
    for (const SlotMember buffer : AllBuffers()) {
      bytes += 8 * static_cast<uint64_t>((enough.*buffer).size);
    }
    EXPECT_GE(needs, bytes);
  }
  FlatCall threads;
  threads.options.num_threads = -1;
  ExpectRefused(threads, ATTN_BAD_THREADS, "threads");
}

// Sizes and scalars, then the budget, then buffers, then contents.
TEST_P(FlatRefusalTest, InThisOrder) {
  const auto break_all_buffers = [](FlatCall& call) {
    for (const SlotMember buffer : AllBuffers()) (call.*buffer).data = nullptr;
  };
  for (const FlatRule& rule : GetParam().rules) {
    FlatCall call;
    call.options.max_flops = 0;
    break_all_buffers(call);
    rule.breaks(call);
    EXPECT_EQ(GetParam().run(call), rule.status) << rule.name;
  }
  FlatCall call;
  call.options.max_flops = 0;
  break_all_buffers(call);
  EXPECT_EQ(GetParam().run(call), ATTN_OVER_FLOPS);
  for (const FlatRule& rule : GetParam().contents) {
    FlatCall contents;
    rule.breaks(contents);
    for (const SlotMember output : GetParam().outputs) (contents.*output).data = nullptr;
    EXPECT_EQ(GetParam().run(contents), ATTN_NULL_BUFFER) << rule.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, FlatRefusalTest, ::testing::ValuesIn(FlatFunctions()),
                         [](const ::testing::TestParamInfo<FlatFunction>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace flashlane::testing
