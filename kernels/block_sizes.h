// Block sizes and register tiles, with the reason beside every number. Block sizes depend on the
// head sizes and on the target only, never on threads or on other sequences: they decide bits.
#ifndef FLASHLANE_KERNELS_BLOCK_SIZES_H_
#define FLASHLANE_KERNELS_BLOCK_SIZES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace flashlane::kernels {

// Register tile of both products: kTileRows broadcasts x kTileVectors vectors of accumulators.
// 6 x 4 = 24 accumulators + 4 operands + 1 broadcast = 29 of the 32 registers of AVX-512 and NEON;
// 6 x 2 = 12 + 2 + 1 = 15 of the 16 of AVX2 and SSE2. Per step 6 + 4 (6 + 2) loads feed 24 (12)
// multiply-adds, so that the load ports are never the limit.
inline constexpr size_t kTileRows = 6;
constexpr size_t TileVectors(size_t num_registers) { return num_registers >= 32 ? 4 : 2; }

struct FlashBlocks {
  int64_t block_q;  // rows per tile (all query heads of a kv head count); a multiple of the panel
  int64_t block_k;  // keys per pass over the rows; passes start at multiples of it
  int64_t chunk_k;  // keys per step of the online softmax; a divisor of block_k
};

// panel_rows: rows of one register tile (lanes * TileVectors).
constexpr FlashBlocks ChooseFlashBlocks(int64_t head_dim, int64_t head_dim_v, int64_t panel_rows,
                                        int64_t element_bytes) {
  // A whole number of register tiles (32 * 6). The scores of a panel (64 rows * 192 keys * 4 bytes)
  // stay in L1 or the near part of L2; longer blocks gain nothing, shorter ones pay the rescale
  // and the loads of O more often. All are weighed at once: chunks of 96 keys, which L1 holds,
  // gained nothing.
  constexpr int64_t kBlockK = 192;
  // Packed Q and O of a tile: half of a 1 MiB L2, so that a block of K and V stays beside them.
  constexpr int64_t kTileBytes = 512 * 1024;
  // Beyond 512 rows nothing more is gained from reading K and V once per tile.
  constexpr int64_t kMaxRows = 512;
  const int64_t row_bytes = (head_dim + head_dim_v) * element_bytes;
  const int64_t rows =
      std::clamp(kTileBytes / row_bytes, panel_rows, std::max(kMaxRows, panel_rows));
  return {rows / panel_rows * panel_rows, kBlockK, kBlockK};
}

// Pairs of bf16 multiplied by vector instructions.
constexpr FlashBlocks ChooseDotBlocks(int64_t head_dim, int64_t head_dim_v, int64_t panel_rows) {
  constexpr int64_t kBlockK = 192;  // as above
  // A whole number of register tiles, too, whose scores stay in L1 (64 rows * 96 keys * 4 bytes).
  constexpr int64_t kChunkK = 96;
  // As above, but Q takes half the bytes.
  constexpr int64_t kTileBytes = 512 * 1024;
  constexpr int64_t kMaxRows = 512;
  const int64_t row_bytes = 2 * head_dim + 4 * head_dim_v;
  const int64_t rows =
      std::clamp(kTileBytes / row_bytes, panel_rows, std::max(kMaxRows, panel_rows));
  return {rows / panel_rows * panel_rows, kBlockK, kChunkK};
}

// Pairs of bf16 multiplied by AMX tiles. Chosen from a prototype's figures on Sapphire Rapids;
// this code has not been swept there (perf/sweep_blocks.py does it).
constexpr FlashBlocks ChooseAmxBlocks(int64_t head_dim, int64_t head_dim_v, int64_t panel_rows) {
  // O is loaded and stored once per 256 keys: 0.69 of the tiles' peak in O += P V, against 0.64
  // with 128 and 0.65 with 512.
  constexpr int64_t kBlockK = 256;
  // A ring of 8 KiB of scores, 16 KiB of weights and 16 KiB of O, while 8 KiB of Q and 16 KiB of K
  // pass through: together a little more than the 48 KiB of L1.
  constexpr int64_t kChunkK = 64;
  // K and V are packed once per block and tile, which costs about 25 % of the products with 128
  // rows, and so 3 % with 1024; Q and O of as many take 768 KiB of a 2 MiB L2 at D 128.
  constexpr int64_t kTileBytes = 1024 * 1024;
  constexpr int64_t kMaxRows = 1024;
  const int64_t row_bytes = 2 * head_dim + 4 * head_dim_v;
  const int64_t rows = std::clamp(kTileBytes / row_bytes, panel_rows, kMaxRows);
  return {rows / panel_rows * panel_rows, kBlockK, kChunkK};
}

struct BackwardBlocks {
  int64_t block_q;  // rows that are packed at once; a multiple of the panel
  int64_t block_k;  // keys whose P and dS are kept at once; blocks start at multiples of it
};

// What a row of queries and a key take while they are worked on, and the keys that a unit takes at
// once.
struct BackwardBytes {
  int64_t per_row;
  int64_t per_key;
  int64_t key_granule;
};

// See the cost argument of backward-inl.h.
constexpr BackwardBlocks ChooseBackwardBlocks(const BackwardBytes& bytes, int64_t panel_rows) {
  // Whole register tiles; 96 keys of a panel (64 rows * 4 bytes) are 24 KiB, half of L1.
  constexpr int64_t kMaxKeys = 96;
  constexpr int64_t kMinKeys = 24;
  constexpr int64_t kKeyBytes = 128 * 1024;
  // Two thirds of a 1 MiB L2, so that K, V, P and dS of a block stay beside them.
  constexpr int64_t kRowsBytes = 640 * 1024;
  constexpr int64_t kMaxRows = 256;
  const int64_t rows =
      std::clamp(kRowsBytes / bytes.per_row, panel_rows, std::max(kMaxRows, panel_rows));
  const int64_t keys =
      std::clamp(kKeyBytes / bytes.per_key, std::max(kMinKeys, bytes.key_granule), kMaxKeys);
  return {rows / panel_rows * panel_rows, keys / bytes.key_granule * bytes.key_granule};
}

// Multiply-adds: Q^T, dO^T, dQ^T, Q and dO; K and V. Register tiles are six keys.
constexpr BackwardBlocks ChooseBackwardFmaBlocks(int64_t head_dim, int64_t head_dim_v,
                                                 int64_t panel_rows, int64_t element_bytes) {
  return ChooseBackwardBlocks(
      {(3 * head_dim + 2 * head_dim_v) * element_bytes, (head_dim + head_dim_v) * element_bytes, 6},
      panel_rows);
}

// Pairs of bf16: dQ^T is f32; K is there twice. `key_granule`: even.
constexpr BackwardBlocks ChooseBackwardPairBlocks(int64_t head_dim, int64_t head_dim_v,
                                                  int64_t panel_rows, int64_t key_granule) {
  return ChooseBackwardBlocks(
      {8 * head_dim + 4 * head_dim_v, 4 * head_dim + 2 * head_dim_v, key_granule}, panel_rows);
}

// Units of the backward, which are what threads share of one kv head: a strip of 256 query rows at
// least, which every pass over keys takes at once anyway; 512 keys at least, for packing a strip
// anew costs as much as some 10 keys; and so few that the phases between which threads wait stay
// few.
inline constexpr int64_t kMinPieceRows = 256;
inline constexpr int64_t kMinPieceKeys = 512;
inline constexpr int64_t kMaxPieces = 16;
// Of `length`, in even pieces of at least `least` and multiples of `granule`.
constexpr int64_t PieceLength(int64_t length, int64_t least, int64_t granule) {
  const int64_t pieces = std::clamp<int64_t>(length / least, 1, kMaxPieces);
  const int64_t even = std::max<int64_t>((length + pieces - 1) / pieces, 1);
  return (even + granule - 1) / granule * granule;
}

// In the fast domain, rescale a row's accumulators only when its maximum has grown by more than
// this many powers of two: until then p <= 2^8, which costs an f32 sum no precision and saves most
// of the multiplications. Should O overflow by it, the row is computed again in the exact domain.
inline constexpr double kRescaleThresholdLog2 = 8.0;

}  // namespace flashlane::kernels

#endif  // FLASHLANE_KERNELS_BLOCK_SIZES_H_
