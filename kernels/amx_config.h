// AMX as a target of its own: a bit beside the Highway target whose vectors it works with, and the
// operand of its configuration.
#ifndef FLASHLANE_KERNELS_AMX_CONFIG_H_
#define FLASHLANE_KERNELS_AMX_CONFIG_H_

#include <cstdint>

// Tiles can be compiled for these systems; whether the machine grants them is for the caller to
// ask.
#if defined(__x86_64__) && defined(__linux__) && (defined(__GNUC__) || defined(__clang__))
#define FLASHLANE_HAS_AMX 1
#else
#define FLASHLANE_HAS_AMX 0
#endif

namespace flashlane::kernels {

// Or'ed to a Highway target bit. No Highway target of x86 has this bit.
inline constexpr std::int64_t kAmxBit = 1;

// Operand of ldtilecfg (Intel SDM volume 1, table 18-1).
struct alignas(64) AmxConfig {
  std::uint8_t palette = 0;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  // All eight registers as the largest tiles of palette 1: 16 rows of 64 bytes.
  static constexpr AmxConfig WholeTiles() {
    AmxConfig config;
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = 64;
      config.rows[i] = 16;
    }
    return config;
  }
};
static_assert(sizeof(AmxConfig) == 64);

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_AMX_CONFIG_H_
