// Element types and non-owning tensor views. Views never allocate and never own; strides are in
// elements and every index computation is 64-bit.
#ifndef FLASHLANE_TENSOR_H_
#define FLASHLANE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace flashlane {

// The first four are the attention dtypes; the rest appear as masks, lengths and tables.
enum class DType : std::uint8_t { kF32, kF64, kBF16, kF16, kBool, kI32, kI64, kU32 };

// Bytes of one element.
constexpr std::size_t DTypeSize(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kBool:
      return 1;
  }
  return 0;
}

// Name as written in messages and in safetensors headers: "F32", "BF16", "BOOL", ...
constexpr const char* DTypeName(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kBool:
      return "BOOL";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU32:
      return "U32";
  }
  return "?";
}

constexpr bool IsAttentionDType(DType dtype) noexcept { return dtype <= DType::kF16; }

inline constexpr int kMaxRank = 4;

// Rank of a view whose lists of sizes and strides differ in length; every call refuses it.
inline constexpr int kStridesMismatch = -1;

// A view of `rank` dimensions: element (i0, i1, ...) is at data + sum(i_d * strides[d]).
// A default-constructed view (rank 0) means "absent" wherever an operand is optional. A view with
// more than kMaxRank dimensions keeps its rank, and every call refuses it. Ptr is `void*`
// (TensorView) or `const void*` (ConstTensorView).
template <typename Ptr>
struct BasicTensorView {
  Ptr data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};

  BasicTensorView() = default;

  // Contiguous row-major view.
  BasicTensorView(Ptr data_in, DType dtype_in,
                  std::initializer_list<std::int64_t> shape_in) noexcept
      : BasicTensorView(data_in, dtype_in, static_cast<int>(shape_in.size()), shape_in.begin()) {}

  // Strided view; both lists have one entry per dimension.
  BasicTensorView(Ptr data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in,
                  std::initializer_list<std::int64_t> strides_in) noexcept
      : BasicTensorView(data_in, dtype_in, static_cast<int>(shape_in.size()), shape_in.begin(),
                        strides_in.size() == shape_in.size() ? strides_in.begin() : nullptr) {
    if (strides_in.size() != shape_in.size()) rank = kStridesMismatch;
  }

  // From arrays of rank_in sizes and, unless null (contiguous), strides.
  BasicTensorView(Ptr data_in, DType dtype_in, int rank_in, const std::int64_t* shape_in,
                  const std::int64_t* strides_in = nullptr) noexcept
      : data(data_in), dtype(dtype_in), rank(rank_in) {
    const int kept = rank < kMaxRank ? rank : kMaxRank;
    for (int d = 0; d < kept; ++d) shape[d] = shape_in[d];
    std::int64_t stride = 1;
    for (int d = kept - 1; d >= 0; --d) {
      strides[d] = stride;
      // A size that no memory holds; every call refuses it.
      if (__builtin_mul_overflow(stride, shape[d], &stride)) stride = 0;
    }
    for (int d = 0; strides_in != nullptr && d < kept; ++d) strides[d] = strides_in[d];
  }

  // [B, S, H, D] memory, as most frameworks keep activations, seen as [B, H, S, D].
  static BasicTensorView FromBshd(Ptr data, DType dtype, std::int64_t batch, std::int64_t seqlen,
                                  std::int64_t num_heads, std::int64_t head_dim) noexcept {
    return BasicTensorView(data, dtype, {batch, num_heads, seqlen, head_dim},
                           {seqlen * num_heads * head_dim, head_dim, num_heads * head_dim, 1});
  }

  // TensorView converts to ConstTensorView, not back.
  template <typename OtherPtr, typename = std::enable_if_t<std::is_convertible_v<OtherPtr, Ptr>>>
  BasicTensorView(const BasicTensorView<OtherPtr>& other) noexcept  // NOLINT: implicit on purpose
      : data(other.data), dtype(other.dtype), rank(other.rank) {
    for (int d = 0; d < kMaxRank; ++d) {
      shape[d] = other.shape[d];
      strides[d] = other.strides[d];
    }
  }

  bool present() const noexcept { return rank != 0; }
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

}  // namespace flashlane

#endif  // FLASHLANE_TENSOR_H_
