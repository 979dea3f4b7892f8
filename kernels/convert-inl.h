// Loads and stores with promotion: the only file of the vector kernels where an element type
// differs. Everything else computes in Compute<T>: double for double, else float.

#if defined(FLASHLANE_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLANE_KERNELS_CONVERT_INL_H_
#undef FLASHLANE_KERNELS_CONVERT_INL_H_
#else
#define FLASHLANE_KERNELS_CONVERT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/args.h"
#include "kernels/instruction_set-inl.h"
#include "kernels/kv_source.h"

HWY_BEFORE_NAMESPACE();
namespace flashlane::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
inline constexpr bool kPromotes = !std::is_same_v<T, Compute<T>>;

// Rows that the products can read as they are, or after promotion into scratch.
template <typename C>
struct MatrixRows {
  const C* data;
  int64_t stride;  // elements between rows
};

template <typename T>
HWY_INLINE Compute<T> LoadScalar(const T* from) {
  return hwy::ConvertScalarTo<Compute<T>>(*from);
}

// Element `index` of an operand that is of type T or F32.
template <typename T, class Operand>
HWY_INLINE Compute<T> LoadOperand(const Operand& operand, int64_t index) {
  if (operand.is_f32) return static_cast<const float*>(operand.data)[index];
  return LoadScalar(static_cast<const T*>(operand.data) + index);
}

// Rounds `value` to element `index` of an operand that is of type T or F32.
template <typename T>
HWY_INLINE void StoreOperand(void* data, bool is_f32, int64_t index, double value) {
  if (is_f32) {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  } else {
    static_cast<T*>(data)[index] = hwy::ConvertScalarTo<T>(value);
  }
}

// Types that convert by vectors; the others by elements.
template <typename T>
inline constexpr bool kConvertsVectors = kHasF16Conversion || !std::is_same_v<T, hwy::float16_t>;

// One vector of elements, promoted to the type of D: Compute<T>, or double for operands in F32.
template <typename T, class D = hn::ScalableTag<Compute<T>>>
HWY_INLINE hn::Vec<D> LoadPromoted(D d, const T* from) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return hn::LoadU(d, from);
  } else if constexpr (kConvertsVectors<T>) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
  } else {
    HWY_ALIGN Compute<T> elements[hn::MaxLanes(D())];
    for (size_t i = 0; i < hn::Lanes(d); ++i) elements[i] = LoadScalar(from + i);
    return hn::Load(d, elements);
  }
}

// The first `count` lanes, 0 in the others.
template <typename T, class D = hn::ScalableTag<Compute<T>>>
HWY_INLINE hn::Vec<D> LoadPromotedN(D d, const T* from, size_t count) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return hn::LoadN(d, from, count);
  } else if constexpr (kConvertsVectors<T>) {
    return hn::PromoteTo(d, hn::LoadN(hn::Rebind<T, D>(), from, count));
  } else {
    HWY_ALIGN Compute<T> elements[hn::MaxLanes(D())] = {};
    for (size_t i = 0; i < count; ++i) elements[i] = LoadScalar(from + i);
    return hn::Load(d, elements);
  }
}

// Promotes `count` elements; copies them where T is the compute type.
template <typename T>
HWY_INLINE void PromoteRow(const T* from, int64_t count, Compute<T>* to) {
  const hn::ScalableTag<Compute<T>> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(LoadPromoted(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = LoadScalar(from + i);
}

// Rows [begin, end) of `source` for the products: in place where T is the compute type and they lie
// at one distance, else in `scratch`, which has room for (end - begin) * width elements.
template <typename T>
HWY_INLINE MatrixRows<Compute<T>> PromoteRows(const KvRows<T>& source, int64_t begin, int64_t end,
                                              int64_t width, Compute<T>* scratch) {
  if constexpr (!kPromotes<T>) {
    if (source.strided()) return {source.Row(begin), source.row_stride};
  }
  for (int64_t j = begin; j < end; ++j) {
    PromoteRow(source.Row(j), width, scratch + (j - begin) * width);
  }
  return {scratch, width};
}

// f32 to bf16 to nearest even. In integers, because the conversion instructions of x86 flush
// denormals.
template <class D, class V>
HWY_INLINE void StoreRounded(D /*d*/, V x, hwy::bfloat16_t* to) {
  const hn::RebindToUnsigned<D> du32;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du32, 0x7FFF)), odd);
  // Rounding could carry a NaN into another number: keep its sign and make it quiet.
  const auto quiet = hn::Or(bits, hn::Set(du32, 0x00400000));
  const auto nan = hn::RebindMask(du32, hn::IsNaN(x));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::TruncateTo(du16, high), du16, reinterpret_cast<uint16_t*>(to));
}

template <class D, class V>
HWY_INLINE void StoreRounded(D d, V x, hwy::float16_t* to) {
  if constexpr (kHasF16Conversion) {
    const hn::Rebind<hwy::float16_t, D> dt;
    hn::StoreU(hn::DemoteTo(dt, x), dt, to);
  } else {
    HWY_ALIGN float elements[hn::MaxLanes(D())];
    hn::Store(x, d, elements);
    for (size_t i = 0; i < hn::Lanes(d); ++i) {
      to[i] = hwy::ConvertScalarTo<hwy::float16_t>(elements[i]);
    }
  }
}

template <class D, class V, typename C>
HWY_INLINE void StoreRounded(D d, V x, C* to) {
  hn::StoreU(x, d, to);
}

// There is one NaN: which of two an operation keeps depends on the order of its operands.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V OneNaN(D d, V v) {
  const V nan = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(v), nan, v);
}

// Bits of f32 whose upper half is x in bf16, to nearest even; x may be the one NaN, which stays.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundedUpperHalf(D /*d*/, V x) {
  const hn::RebindToUnsigned<D> du32;
  const auto bits = hn::BitCast(du32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
  return hn::Add(hn::Add(bits, hn::Set(du32, 0x7FFF)), odd);
}

// One vector, rounded to T.
template <class D, class V, typename T>
HWY_INLINE void StoreOneNaN(D d, V x, T* to) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::Rebind<uint16_t, D> du16;
    const auto bits = RoundedUpperHalf(d, OneNaN(d, x));
    hn::StoreU(hn::TruncateTo(du16, hn::ShiftRight<16>(bits)), du16,
               reinterpret_cast<uint16_t*>(to));
  } else {
    StoreRounded(d, OneNaN(d, x), to);
  }
}

// Two vectors, one behind the other.
template <class D, class V, typename T>
HWY_INLINE void StoreOneNaN(D d, V low, V high, T* to) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::Repartition<uint16_t, D> du16;
    const auto low_bits = hn::BitCast(du16, RoundedUpperHalf(d, OneNaN(d, low)));
    const auto high_bits = hn::BitCast(du16, RoundedUpperHalf(d, OneNaN(d, high)));
    hn::StoreU(hn::ConcatOdd(du16, high_bits, low_bits), du16, reinterpret_cast<uint16_t*>(to));
  } else {
    StoreOneNaN(d, low, to);
    StoreOneNaN(d, high, to + hn::Lanes(d));
  }
}

template <class V>
struct EvenOdd {
  V even, odd;
};

// Two vectors' elements, the even ones and the odd ones.
template <typename T, class D = hn::ScalableTag<Compute<T>>, class V = hn::Vec<D>>
HWY_INLINE EvenOdd<V> LoadEvenOdd(D d, const T* from) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::RebindToUnsigned<D> du32;
    const hn::Repartition<uint16_t, D> du16;
    const auto both = hn::BitCast(du32, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(from)));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, hn::Set(du32, 0xFFFF0000u)))};
  } else {
    const V low = LoadPromoted(d, from), high = LoadPromoted(d, from + hn::Lanes(d));
    return {hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)};
  }
}

// The same back, with one NaN.
template <class D, class V, typename T>
HWY_INLINE void StoreEvenOdd(D d, const EvenOdd<V>& v, T* to) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::RebindToUnsigned<D> du32;
    const hn::Repartition<uint16_t, D> du16;
    const auto even = hn::ShiftRight<16>(RoundedUpperHalf(d, OneNaN(d, v.even)));
    const auto odd = hn::And(RoundedUpperHalf(d, OneNaN(d, v.odd)), hn::Set(du32, 0xFFFF0000u));
    hn::StoreU(hn::BitCast(du16, hn::Or(even, odd)), du16, reinterpret_cast<uint16_t*>(to));
  } else {
    const V even = OneNaN(d, v.even), odd = OneNaN(d, v.odd);
    StoreRounded(d, hn::InterleaveWholeLower(d, even, odd), to);
    StoreRounded(d, hn::InterleaveWholeUpper(d, even, odd), to + hn::Lanes(d));
  }
}

// The first `count` lanes only.
template <class D, class V, typename T>
HWY_INLINE void StoreRoundedN(D d, V x, size_t count, T* to) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    hn::StoreN(x, d, to, count);
  } else {
    HWY_ALIGN T elements[hn::MaxLanes(D())];
    StoreRounded(d, x, elements);
    for (size_t i = 0; i < count; ++i) to[i] = elements[i];
  }
}

// Rounds `count` elements to T, to nearest even.
template <typename T>
HWY_INLINE void DemoteRow(const Compute<T>* from, int64_t count, T* to) {
  const hn::ScalableTag<Compute<T>> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) StoreRounded(d, hn::LoadU(d, from + i), to + i);
  for (; i < count; ++i) to[i] = hwy::ConvertScalarTo<T>(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace flashlane::kernels
HWY_AFTER_NAMESPACE();

#endif  // FLASHLANE_KERNELS_CONVERT_INL_H_
