// AMX instructions for tests, as text: no compiler flag is needed, and the emulator and the
// hardware see the same bytes.
#ifndef FLASHLANE_TESTS_SUPPORT_AMX_ASM_H_
#define FLASHLANE_TESTS_SUPPORT_AMX_ASM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/amx_emulator.h"

namespace flashlane::testing::amx {

// The operand of ldtilecfg, palette 1.
struct alignas(64) Config {
  uint8_t bytes[64] = {1};

  Config& Set(int tile, int rows, int colsb) {
    bytes[16 + 2 * tile] = static_cast<uint8_t>(colsb & 0xFF);
    bytes[17 + 2 * tile] = static_cast<uint8_t>(colsb >> 8);
    bytes[48 + tile] = static_cast<uint8_t>(rows);
    return *this;
  }
  static Config AllFull() {
    Config config;
    for (int tile = 0; tile < 8; ++tile) config.Set(tile, 16, 64);
    return config;
  }
};

inline void Configure(const Config& config) {
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
inline Config Configuration() {
  Config config;
  asm volatile("sttilecfg %0" : "=m"(config)::"memory");
  return config;
}
inline void Release() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile>
void Zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile) : "memory");
}
template <int kTile>
void Load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void LoadOnce(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void Store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// c += a * b. AT&T order: b, a, c.
template <int kC, int kA, int kB>
void Multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB) : "memory");
}

inline std::vector<uint8_t> RandomBytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// Runs on the emulator or on real AMX.
class AmxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const bool emulated = InstallAmxEmulator();
    if (!emulated && !AmxHardwareUsable())
      GTEST_SKIP() << "neither AMX nor the means to emulate it";
    EXPECT_NE(emulated, AmxHardwareUsable());
  }
};

}  // namespace flashlane::testing::amx

#endif  // FLASHLANE_TESTS_SUPPORT_AMX_ASM_H_
