#include "tests/support/flat_calls.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/flat.h"
#include "tests/support/numbers.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::vector<FlatRule> operator+(std::vector<FlatRule> a, const std::vector<FlatRule>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<FlatRule> kDimsRules = {
    {"h_q 0", [](FlatCall& c) { c.dims.h_q = 0; }, ATTN_BAD_H_Q},
    {"h_q -4", [](FlatCall& c) { c.dims.h_q = -4; }, ATTN_BAD_H_Q},
    {"h_kv 0", [](FlatCall& c) { c.dims.h_kv = 0; }, ATTN_BAD_H_KV},
    {"h_kv 3", [](FlatCall& c) { c.dims.h_kv = 3; }, ATTN_BAD_GROUP},
    {"n_tok_q -1", [](FlatCall& c) { c.dims.n_tok_q = -1; }, ATTN_BAD_N_TOK_Q},
    {"n_tok_k -1", [](FlatCall& c) { c.dims.n_tok_k = -1; }, ATTN_BAD_N_TOK_K},
    {"head_dim 0", [](FlatCall& c) { c.dims.head_dim = 0; }, ATTN_BAD_HEAD_DIM},
    {"n_tok_q huge", [](FlatCall& c) { c.dims.n_tok_q = kMax; }, ATTN_SIZE_OVERFLOW},
    {"n_tok_k huge", [](FlatCall& c) { c.dims.n_tok_k = kMax; }, ATTN_SIZE_OVERFLOW},
    {"bias huge", [](FlatCall& c) { c.dims.n_tok_q = c.dims.n_tok_k = int64_t{1} << 40; },
     ATTN_SIZE_OVERFLOW},
    {"scale NaN", [](FlatCall& c) { c.params.scale = kNan; }, ATTN_BAD_SCALE},
    {"scale inf", [](FlatCall& c) { c.params.scale = kInf; }, ATTN_BAD_SCALE},
    {"scale -inf", [](FlatCall& c) { c.params.scale = -kInf; }, ATTN_BAD_SCALE},
};

const std::vector<FlatRule> kTileRules = {
    {"tile 0", [](FlatCall& c) { c.tile = 0; }, ATTN_BAD_TILE},
    {"tile -1", [](FlatCall& c) { c.tile = -1; }, ATTN_BAD_TILE},
};

const std::vector<FlatRule> kBackendRules = {
    {"backend -1", [](FlatCall& c) { c.backend = ATTN_BACKEND_UNKNOWN; }, ATTN_BAD_BACKEND},
    {"backend 5", [](FlatCall& c) { c.backend = static_cast<AttnBackend>(5); }, ATTN_BAD_BACKEND},
};

const std::vector<FlatRule> kStepRules = {
    {"step 0", [](FlatCall& c) { c.step = 0.0; }, ATTN_BAD_STEP},
    {"step -1", [](FlatCall& c) { c.step = -1.0; }, ATTN_BAD_STEP},
    {"step NaN", [](FlatCall& c) { c.step = kNan; }, ATTN_BAD_STEP},
    {"step inf", [](FlatCall& c) { c.step = kInf; }, ATTN_BAD_STEP},
};

const std::vector<FlatRule> kTokenRules = {
    {"n_tok_q -1", [](FlatCall& c) { c.dims.n_tok_q = -1; }, ATTN_BAD_N_TOK_Q},
    {"n_tok_k -1", [](FlatCall& c) { c.dims.n_tok_k = -1; }, ATTN_BAD_N_TOK_K},
    {"mask huge", [](FlatCall& c) { c.dims.n_tok_q = kMax; }, ATTN_SIZE_OVERFLOW},
};

const std::vector<FlatRule> kOffsetRules = {
    {"offset huge", [](FlatCall& c) { c.offset = c.window.offset = kMax; }, ATTN_BAD_OFFSET},
    {"offset least", [](FlatCall& c) { c.offset = c.window.offset = -kMax - 1; }, ATTN_BAD_OFFSET},
};

const std::vector<FlatRule> kWindowRules = {
    {"left -1", [](FlatCall& c) { c.window.window_size_left = -1; }, ATTN_BAD_WINDOW},
    {"right -1", [](FlatCall& c) { c.window.window_size_right = -1; }, ATTN_BAD_WINDOW},
};

const std::vector<FlatRule> kPaddingRules = {
    {"k_len -1", [](FlatCall& c) { c.k_len = -1; }, ATTN_BAD_LENGTH},
    {"k_len 6", [](FlatCall& c) { c.k_len = 6; }, ATTN_BAD_LENGTH},
};

const std::vector<FlatRule> kSequenceContents = {
    {"cu_seqlens_q falls",
     [](FlatCall& c) {
       c.cu_seqlens_q.Fill(std::vector<int64_t>{0, 4, 3});
     },
     ATTN_BAD_LENGTH},
    {"cu_seqlens_k too short",
     [](FlatCall& c) {
       c.cu_seqlens_k.Fill(std::vector<int64_t>{0, 1, 4});
     },
     ATTN_BAD_LENGTH},
    {"cu_seqlens unlike",
     [](FlatCall& c) {
       c.cu_seqlens_k.Fill(std::vector<int64_t>{0, 5});
     },
     ATTN_BAD_LENGTH},
};

const std::vector<FlatRule> kFrequencyRules = {
    {"head_dim 0", [](FlatCall& c) { c.table.head_dim = 0; }, ATTN_BAD_HEAD_DIM},
    {"head_dim 7", [](FlatCall& c) { c.table.head_dim = 7; }, ATTN_BAD_HEAD_DIM},
    {"head_dim huge", [](FlatCall& c) { c.table.head_dim = kMax - 1; }, ATTN_SIZE_OVERFLOW},
    {"theta 0", [](FlatCall& c) { c.table.theta = 0.0; }, ATTN_BAD_THETA},
    {"theta NaN", [](FlatCall& c) { c.table.theta = kNan; }, ATTN_BAD_THETA},
    {"theta inf", [](FlatCall& c) { c.table.theta = kInf; }, ATTN_BAD_THETA},
};

const std::vector<FlatRule> kTableRules = {
    {"n_pos -1", [](FlatCall& c) { c.table.n_pos = -1; }, ATTN_BAD_N_POS},
    {"n_pos huge", [](FlatCall& c) { c.table.n_pos = kMax; }, ATTN_SIZE_OVERFLOW},
};

const std::vector<FlatRule> kStartRules = {
    {"start huge", [](FlatCall& c) { c.table.start = kMax; }, ATTN_BAD_POSITION},
    {"end beyond 2^53", [](FlatCall& c) { c.table.start = (int64_t{1} << 53) - 4; },
     ATTN_BAD_POSITION},
};

const std::vector<FlatRule> kRopeRules = {
    {"h 0", [](FlatCall& c) { c.rope.h = 0; }, ATTN_BAD_H_Q},
    {"n_tok -1", [](FlatCall& c) { c.rope.n_tok = -1; }, ATTN_BAD_N_TOK_Q},
    {"n_tok huge", [](FlatCall& c) { c.rope.n_tok = kMax; }, ATTN_SIZE_OVERFLOW},
    {"head_dim 0", [](FlatCall& c) { c.rope.head_dim = 0; }, ATTN_BAD_HEAD_DIM},
    {"head_dim odd", [](FlatCall& c) { c.rope.head_dim = 7, c.rope.rotary_dim = 0; },
     ATTN_BAD_HEAD_DIM},
    {"rotary_dim 3", [](FlatCall& c) { c.rope.rotary_dim = 3; }, ATTN_BAD_ROTARY_DIM},
    {"rotary_dim 10", [](FlatCall& c) { c.rope.rotary_dim = 10; }, ATTN_BAD_ROTARY_DIM},
    {"rotary_dim -2", [](FlatCall& c) { c.rope.rotary_dim = -2; }, ATTN_BAD_ROTARY_DIM},
};

const std::vector<FlatRule> kPositionContents = {
    {"position -1",
     [](FlatCall& c) {
       c.position.Fill(std::vector<int64_t>{0, -1, 1});
     },
     ATTN_BAD_POSITION},
    {"position 6",
     [](FlatCall& c) {
       c.position.Fill(std::vector<int64_t>{0, 1, 6});
     },
     ATTN_BAD_POSITION},
};

std::vector<FlatFunction> AttentionFunctions() {
  using C = FlatCall;
  const std::vector<SlotMember> in = {&C::q, &C::k, &C::v, &C::bias};
  const std::vector<SlotMember> out = {&C::out, &C::lse};
  const auto forward = [](auto function) {
    return
        [function](C& c) { return function(c.Inputs(), c.dims, c.params, c.Outputs(), c.options); };
  };
  const auto tiles = [](auto function) {
    return [function](C& c) {
      return function(c.Inputs(), c.dims, c.params, c.tile, c.Outputs(), c.options);
    };
  };
  const auto agrees = [](C& c) {
    return flash_agrees_with_sdpa(c.Inputs(), c.dims, c.params, c.tile, c.options).status;
  };
  const auto delta = [](C& c) {
    return attn_reference_delta_flat(c.backend, c.Inputs(), c.dims, c.params, c.tile, c.options)
        .status;
  };
  const auto backward = [](C& c) {
    return sdpa_bwd_flat({c.Inputs(), C::Doubles(c.dout)}, c.dims, c.params,
                         {C::Doubles(c.dq), C::Doubles(c.dk), C::Doubles(c.dv)}, c.options);
  };
  const auto gradcheck = [](C& c) {
    return attn_bwd_gradcheck_flat(c.Inputs(), c.dims, c.params, c.step, c.options).status;
  };
  return {
      {"sdpa_forward_flat", forward(sdpa_forward_flat), in, out, kDimsRules},
      {"flash_forward_flat", tiles(flash_forward_flat), in, out, kDimsRules + kTileRules},
      {"tiled_forward_flat", tiles(tiled_forward_flat), in, out, kDimsRules + kTileRules},
      {"direct_forward_flat", forward(direct_forward_flat), in, out, kDimsRules},
      {"unstable_forward_flat", forward(unstable_forward_flat), in, out, kDimsRules},
      {"flash_agrees_with_sdpa", agrees, in, {}, kDimsRules + kTileRules},
      {"attn_reference_delta_flat", delta, in, {}, kDimsRules + kTileRules + kBackendRules},
      {"sdpa_bwd_flat",
       backward,
       {&C::q, &C::k, &C::v, &C::bias, &C::dout},
       {&C::dq, &C::dk, &C::dv},
       kDimsRules},
      {"attn_bwd_gradcheck_flat", gradcheck, in, {}, kDimsRules + kStepRules},
  };
}

std::vector<FlatFunction> MaskFunctions() {
  using C = FlatCall;
  const auto causal = [](C& c) {
    return mask_causal_flat(c.dims.n_tok_q, c.dims.n_tok_k, c.offset, C::Doubles(c.mask),
                            c.options);
  };
  const auto window = [](C& c) {
    return mask_sliding_window_flat(c.dims.n_tok_q, c.dims.n_tok_k, c.window, C::Doubles(c.mask),
                                    c.options);
  };
  const auto padding = [](C& c) {
    return mask_padding_flat(c.dims.n_tok_q, c.dims.n_tok_k, c.k_len, C::Doubles(c.mask),
                             c.options);
  };
  const auto blocks = [](C& c) {
    return mask_block_diagonal_flat(c.dims.n_tok_q, c.dims.n_tok_k,
                                    {C::Indices(c.cu_seqlens_q), C::Indices(c.cu_seqlens_k)},
                                    C::Doubles(c.mask), c.options);
  };
  return {
      {"mask_causal_flat", causal, {}, {&C::mask}, kTokenRules + kOffsetRules},
      {"mask_sliding_window_flat",
       window,
       {},
       {&C::mask},
       kTokenRules + kOffsetRules + kWindowRules},
      {"mask_padding_flat", padding, {}, {&C::mask}, kTokenRules + kPaddingRules},
      {"mask_block_diagonal_flat",
       blocks,
       {&C::cu_seqlens_q, &C::cu_seqlens_k},
       {&C::mask},
       kTokenRules,
       kSequenceContents},
  };
}

std::vector<FlatFunction> RopeFunctions() {
  using C = FlatCall;
  const auto frequencies = [](C& c) {
    return rope_inv_freq(c.table.head_dim, c.table.theta, C::Doubles(c.inv_freq), c.options);
  };
  const auto scaled = [](C& c) {
    return rope_inv_freq_scaled(c.table.head_dim, c.table.theta, c.table.scaling,
                                C::Doubles(c.inv_freq), nullptr, c.options);
  };
  const auto table = [](C& c) {
    return rope_table(c.table.head_dim, c.table.n_pos, c.table.theta,
                      {C::Doubles(c.cos_out), C::Doubles(c.sin_out)}, c.options);
  };
  const auto table_scaled = [](C& c) {
    return rope_table_scaled(c.table, {C::Doubles(c.cos_out), C::Doubles(c.sin_out)}, c.options);
  };
  const auto apply = [](auto function) {
    return [function](C& c) {
      return function(c.Rope(), c.rope, false, C::Doubles(c.turned), c.options);
    };
  };
  const std::vector<SlotMember> in = {&C::x, &C::cos_t, &C::sin_t, &C::position};
  const std::vector<SlotMember> tables = {&C::cos_out, &C::sin_out};
  return {
      {"rope_inv_freq", frequencies, {}, {&C::inv_freq}, kFrequencyRules},
      {"rope_inv_freq_scaled", scaled, {}, {&C::inv_freq}, kFrequencyRules},
      {"rope_table", table, {}, tables, kFrequencyRules + kTableRules},
      {"rope_table_scaled", table_scaled, {}, tables, kFrequencyRules + kTableRules + kStartRules},
      {"rope_apply_flat", apply(rope_apply_flat), in, {&C::turned}, kRopeRules, kPositionContents},
      {"rope_apply_inverse_flat",
       apply(rope_apply_inverse_flat),
       in,
       {&C::turned},
       kRopeRules,
       kPositionContents},
  };
}

}  // namespace

void FlatSlot::Fill(const std::vector<double>& values) {
  storage.assign(kStorage, kSentinel);
  std::memcpy(storage.data(), values.data(), values.size() * sizeof(double));
  data = storage.data();
  size = static_cast<int64_t>(values.size());
}

void FlatSlot::Fill(const std::vector<int64_t>& values) {
  storage.assign(kStorage, kSentinel);
  std::memcpy(storage.data(), values.data(), values.size() * sizeof(int64_t));
  data = storage.data();
  size = static_cast<int64_t>(values.size());
}

void FlatSlot::Poison(int64_t elements) {
  storage.assign(kStorage, kSentinel);
  data = storage.data();
  size = elements;
}

bool FlatSlot::Untouched() const {
  for (const double x : storage) {
    if (x != kSentinel) return false;
  }
  return true;
}

bool FlatSlot::UntouchedBeyond() const {
  for (auto i = static_cast<size_t>(size); i < storage.size(); ++i) {
    if (storage[i] != kSentinel) return false;
  }
  return true;
}

FlatCall::FlatCall() {
  table.head_dim = 8;
  table.n_pos = 6;
  q.Fill(RandomDoubles(3 * 4 * 8, 1));
  k.Fill(RandomDoubles(5 * 2 * 8, 2));
  v.Fill(RandomDoubles(5 * 2 * 8, 3));
  bias.Fill(RandomDoubles(3 * 5, 4));
  dout.Fill(RandomDoubles(3 * 4 * 8, 5));
  x.Fill(RandomDoubles(3 * 2 * 8, 6));
  cos_t.Fill(RandomDoubles(6 * 2, 7));
  sin_t.Fill(RandomDoubles(6 * 2, 8));
  position.Fill(std::vector<int64_t>{0, 5, 2});
  cu_seqlens_q.Fill(std::vector<int64_t>{0, 1, 3});
  cu_seqlens_k.Fill(std::vector<int64_t>{0, 4, 5});
  out.Poison(3 * 4 * 8);
  lse.Poison(4 * 3);
  dq.Poison(3 * 4 * 8);
  dk.Poison(5 * 2 * 8);
  dv.Poison(5 * 2 * 8);
  mask.Poison(3 * 5);
  inv_freq.Poison(4);
  cos_out.Poison(6 * 4);
  sin_out.Poison(6 * 4);
  turned.Poison(3 * 2 * 8);
}

const std::vector<FlatFunction>& FlatFunctions() {
  static const std::vector<FlatFunction> functions = [] {
    std::vector<FlatFunction> all = AttentionFunctions();
    for (const auto& more : {MaskFunctions(), RopeFunctions()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }();
  return functions;
}

}  // namespace flashlane::testing
