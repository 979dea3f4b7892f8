// attnk.rope: against the definition, and back again; a wrong pairing, sign, row or position shows.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "flashlane/flat.h"
#include "tests/support/flat.h"

namespace flashlane::testing {
namespace {

using namespace flat;  // NOLINT: the modules' own names

struct Turn {
  FlatRopeDims dims;
  bool interleaved;
  std::vector<int64_t> position;

  int64_t rotary_dim() const { return dims.rotary_dim == 0 ? dims.head_dim : dims.rotary_dim; }
  int64_t size() const { return dims.n_tok * dims.h * dims.head_dim; }
};

// What tells a mistake from the truth; each is one that loads and runs without error.
struct Mistake {
  bool pairing = false;
  double sign = 1.0;
  int64_t frequency = 0;  // added to the pair's index, around the end
  bool index_as_position = false;
};

// By the definition, from angles and not from tables.
std::vector<double> PlainRope(const Turn& turn, const std::vector<double>& x,
                              const Mistake& mistake = {}) {
  std::vector<double> out = x;
  const int64_t rotary = turn.rotary_dim(), pairs = rotary / 2;
  const bool interleaved = turn.interleaved != mistake.pairing;
  for (int64_t t = 0; t < turn.dims.n_tok; ++t) {
    for (int64_t h = 0; h < turn.dims.h; ++h) {
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t pair = (i + mistake.frequency) % pairs;
        const double position = static_cast<double>(
            mistake.index_as_position ? t : turn.position[static_cast<size_t>(t)]);
        const double angle =
            mistake.sign * position *
            std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary));
        const auto head = static_cast<size_t>((t * turn.dims.h + h) * turn.dims.head_dim);
        const size_t first = head + static_cast<size_t>(interleaved ? 2 * i : i);
        const size_t second = head + static_cast<size_t>(interleaved ? 2 * i + 1 : i + pairs);
        out[first] = x[first] * std::cos(angle) - x[second] * std::sin(angle);
        out[second] = x[second] * std::cos(angle) + x[first] * std::sin(angle);
      }
    }
  }
  return out;
}

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

constexpr int64_t kPositions = 40;

std::vector<double> Apply(const Turn& turn, const std::vector<double>& x, bool inverse) {
  const int64_t pairs = turn.rotary_dim() / 2;
  std::vector<double> cos_t(static_cast<size_t>(kPositions * pairs)), sin_t(cos_t.size());
  EXPECT_EQ(rope_table(turn.rotary_dim(), kPositions, 10000.0, {cos_t, sin_t}), ATTN_OK);
  std::vector<double> out(x.size(), -77.0);
  const FlatRopeInputs inputs = {x, cos_t, sin_t, turn.position};
  const AttnStatus status = inverse
                                ? rope_apply_inverse_flat(inputs, turn.dims, turn.interleaved, out)
                                : rope_apply_flat(inputs, turn.dims, turn.interleaved, out);
  EXPECT_EQ(status, ATTN_OK) << attn_status_name(status);
  return out;
}

// Two packed documents: positions begin anew.
std::vector<Turn> Turns() {
  std::vector<Turn> turns;
  for (const bool interleaved : {false, true}) {
    turns.push_back({{6, 2, 8}, interleaved, {0, 1, 2, 0, 1, 39}});
    turns.push_back({{6, 3, 12, 8}, interleaved, {5, 6, 7, 1, 2, 3}});
    turns.push_back({{3, 1, 64}, interleaved, {30, 4, 17}});
  }
  return turns;
}

TEST(FlatRopeTest, IsTheDefinitionAndComesBack) {
  for (const Turn& turn : Turns()) {
    const std::vector<double> x = RandomDoubles(turn.size(), 3);
    const std::vector<double> turned = Apply(turn, x, false);
    EXPECT_LE(Distance(turned, PlainRope(turn, x)), 1e-13);
    EXPECT_LE(Distance(Apply(turn, turned, true), x), 1e-14);
    EXPECT_LE(Distance(Apply(turn, Apply(turn, x, true), false), x), 1e-14);
  }
}

// Planted: each wrong forward is far from ours, and our inverse does not undo it.
TEST(FlatRopeTest, AMistakeShows) {
  const Mistake mistakes[] = {{true}, {false, -1.0}, {false, 1.0, 1}, {false, 1.0, 0, true}};
  for (const Turn& turn : Turns()) {
    const std::vector<double> x = RandomDoubles(turn.size(), 3);
    for (const Mistake& mistake : mistakes) {
      const std::vector<double> wrong = PlainRope(turn, x, mistake);
      EXPECT_GT(Distance(Apply(turn, x, false), wrong), 0.01);
      EXPECT_GT(Distance(Apply(turn, wrong, true), x), 0.01);
    }
    Turn other = turn;
    other.interleaved = !turn.interleaved;
    EXPECT_GT(Distance(Apply(other, Apply(turn, x, false), true), x), 0.01);
    other = turn;
    other.position[2] += 1;
    EXPECT_GT(Distance(Apply(other, Apply(turn, x, false), true), x), 0.001);
  }
}

TEST(FlatRopeTest, InPlaceAndRestOfTheHead) {
  const Turn turn = {{4, 2, 10, 4}, false, {3, 2, 1, 0}};
  std::vector<double> x = RandomDoubles(turn.size(), 5);
  x[7] = INFINITY;  // copied, not multiplied
  const std::vector<double> want = Apply(turn, x, false);
  EXPECT_EQ(want[7], INFINITY);
  std::vector<double> cos_t(kPositions * 2), sin_t(cos_t.size());
  ASSERT_EQ(rope_table(4, kPositions, 10000.0, {cos_t, sin_t}), ATTN_OK);
  EXPECT_EQ(rope_apply_flat({x, cos_t, sin_t, turn.position}, turn.dims, false, x), ATTN_OK);
  EXPECT_EQ(x, want);
}

TEST(FlatRopeTest, PositionsAreRowsOfTheTables) {
  const FlatRopeDims dims = {2, 1, 4};
  const std::vector<double> x = RandomDoubles(8, 1), cos_t(2 * 5), sin_t(2 * 5 + 1);
  std::vector<double> out(8, -77.0);
  for (const std::vector<int64_t>& position :
       {std::vector<int64_t>{0, 5}, {-1, 0}, {INT64_MAX, 0}, {0, INT64_MIN}}) {
    EXPECT_EQ(rope_apply_flat({x, cos_t, sin_t, position}, dims, false, out), ATTN_BAD_POSITION);
    EXPECT_EQ(rope_apply_inverse_flat({x, cos_t, sin_t, position}, dims, true, out),
              ATTN_BAD_POSITION);
  }
  EXPECT_EQ(out, std::vector<double>(8, -77.0));
  const std::vector<int64_t> last = {4, 0};
  EXPECT_EQ(rope_apply_flat({x, cos_t, sin_t, last}, dims, false, out), ATTN_OK);
}

TEST(FlatRopeTest, TablesFarOutAndScaled) {
  FlatRopeTableParams params;
  params.head_dim = 64;
  params.n_pos = 3;
  params.start = 1'000'002;
  params.scaling.type = RopeScaling::Type::kLlama3;
  params.scaling.factor = 8.0;
  params.scaling.original_max_position = 8192;
  params.theta = 500000.0;
  std::vector<double> cos_t(96), sin_t(96), inv_freq(32), plain(32);
  ASSERT_EQ(rope_table_scaled(params, {cos_t, sin_t}), ATTN_OK);
  double factor = 0;
  ASSERT_EQ(rope_inv_freq_scaled(64, params.theta, params.scaling, inv_freq, &factor), ATTN_OK);
  ASSERT_EQ(rope_inv_freq(64, params.theta, plain), ATTN_OK);
  EXPECT_EQ(factor, 1.0);
  EXPECT_EQ(inv_freq.front(), plain.front());  // high frequencies are kept,
  EXPECT_NEAR(inv_freq.back(), plain.back() / 8.0, 1e-15 * plain.back());  // low ones divided
  for (size_t row = 0; row < 3; ++row) {
    for (size_t i = 0; i < 32; ++i) {
      // The angle to twice the digits: angle + rest, rest so small that its cosine is 1.
      const double position = static_cast<double>(1'000'002 + row), angle = position * inv_freq[i];
      const double rest = std::fma(position, inv_freq[i], -angle);
      EXPECT_NEAR(cos_t[row * 32 + i], std::cos(angle) - rest * std::sin(angle), 3e-16);
      EXPECT_NEAR(sin_t[row * 32 + i], std::sin(angle) + rest * std::cos(angle), 3e-16);
    }
  }
}

TEST(FlatRopeTest, TablesUpToTheLastPosition) {
  constexpr int64_t kLast = int64_t{1} << 53;
  FlatRopeTableParams params;
  params.head_dim = 2;
  params.n_pos = 2;
  std::vector<double> cos_t(2), sin_t(2);
  for (const int64_t start : {-kLast, kLast - 1}) {
    params.start = start;
    EXPECT_EQ(rope_table_scaled(params, {cos_t, sin_t}), ATTN_OK) << start;
    EXPECT_EQ(cos_t[1], std::cos(static_cast<double>(start + 1)));
  }
  for (const int64_t start : {-kLast - 1, kLast}) {
    params.start = start;
    EXPECT_EQ(rope_table_scaled(params, {cos_t, sin_t}), ATTN_BAD_POSITION) << start;
  }
  params.n_pos = 1;
  EXPECT_EQ(rope_table_scaled(params, {cos_t, sin_t}), ATTN_OK);
}

TEST(FlatRopeTest, FrequenciesBeyondF64) {
  FlatRopeTableParams params;
  params.head_dim = 400;
  params.n_pos = 1;
  params.theta = 5e-324;
  std::vector<double> inv_freq(200, -77.0), sin_t(200, -77.0);
  EXPECT_EQ(rope_inv_freq(400, params.theta, inv_freq), ATTN_BAD_THETA);
  EXPECT_EQ(rope_table_scaled(params, {inv_freq, sin_t}), ATTN_BAD_THETA);
  EXPECT_EQ(inv_freq, std::vector<double>(200, -77.0));
  EXPECT_EQ(sin_t, inv_freq);
}

TEST(FlatRopeTest, ScalingOutOfRange) {
  std::vector<double> table(4, -77.0), inv_freq(2, -77.0);
  FlatRopeTableParams params;
  params.head_dim = 4;
  params.n_pos = 1;
  double factor = -77.0;
  const auto expect_bad = [&](RopeScaling scaling) {
    params.scaling = scaling;
    EXPECT_EQ(rope_table_scaled(params, {table, inv_freq}), ATTN_BAD_SCALING);
    EXPECT_EQ(rope_inv_freq_scaled(4, 10000.0, scaling, inv_freq, &factor), ATTN_BAD_SCALING);
  };
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::kLinear;
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    scaling.factor = bad;
    expect_bad(scaling);
  }
  scaling.factor = 8.0;
  scaling.type = RopeScaling::Type::kLlama3;
  expect_bad(scaling);  // no original_max_position
  scaling.original_max_position = 8192;
  scaling.low_freq_factor = 4.0;
  expect_bad(scaling);
  EXPECT_EQ(table, std::vector<double>(4, -77.0));
  EXPECT_EQ(inv_freq, std::vector<double>(2, -77.0));
  EXPECT_EQ(factor, -77.0);
}

}  // namespace
}  // namespace flashlane::testing
