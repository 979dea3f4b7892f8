// A non-owning reference to a callable: two pointers, no allocation, no virtual table. The callable
// must outlive the reference, so use it for parameters only.
#ifndef FLASHLANE_THREADING_FUNCTION_REF_H_
#define FLASHLANE_THREADING_FUNCTION_REF_H_

#include <memory>
#include <type_traits>
#include <utility>

namespace flashlane::threading {

template <typename Signature>
class FunctionRef;

// FunctionRef<R(Args...) noexcept> accepts only callables that are noexcept, so "does not throw" is
// checked by the compiler instead of being promised in a comment.
template <typename R, typename... Args, bool kNoexcept>
class FunctionRef<R(Args...) noexcept(kNoexcept)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_object_v<F> &&
           (kNoexcept ? std::is_nothrow_invocable_r_v<R, F&, Args...>
                      : std::is_invocable_r_v<R, F&, Args...>))
      // Implicit, so that a lambda can be passed where a FunctionRef is asked for.
      FunctionRef(F& function)
  noexcept  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(function)))),
        call_(&Call<F>) {}

  // A temporary lives until the end of the full expression, which contains the whole call.
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && !std::is_reference_v<F> &&
           std::is_constructible_v<FunctionRef, F&>) FunctionRef(F&& function)
  noexcept  // NOLINT(google-explicit-constructor)
      : FunctionRef(function) {}

  R operator()(Args... args) const noexcept(kNoexcept) {
    return call_(object_, std::forward<Args>(args)...);
  }

 private:
  template <typename F>
  static R Call(void* object, Args... args) {
    return (*static_cast<F*>(object))(std::forward<Args>(args)...);
  }

  void* object_;
  R (*call_)(void*, Args...);  // not noexcept: clang 14 cannot take such an address
};

}  // namespace flashlane::threading

#endif  // FLASHLANE_THREADING_FUNCTION_REF_H_
