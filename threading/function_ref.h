// A non-owning reference to a callable: two pointers, no allocation, no virtual table. The callable
// must outlive the reference, so use it for parameters only.
#ifndef FLASHLANE_THREADING_FUNCTION_REF_H_
#define FLASHLANE_THREADING_FUNCTION_REF_H_

#include <memory>
#include <type_traits>
#include <utility>

namespace flashlane::threading {

template <typename F, bool kNoexcept, typename R, typename... Args>
concept CallableAs = std::is_object_v<F> && std::is_invocable_r_v<R, const F&, Args...> &&
    (!kNoexcept || std::is_nothrow_invocable_r_v<R, const F&, Args...>);

template <typename Signature>
class FunctionRef;

// FunctionRef<R(Args...) noexcept> accepts only callables that are noexcept, so "does not throw" is
// checked by the compiler instead of being promised in a comment.
template <typename R, typename... Args, bool kNoexcept>
class FunctionRef<R(Args...) noexcept(kNoexcept)> {
 public:
  // Implicit, so that a lambda can be passed where a FunctionRef is asked for. A temporary lives
  // until the end of the full expression, which contains the whole call.
  template <CallableAs<kNoexcept, R, Args...> F>
  FunctionRef(const F& function) noexcept  // NOLINT(google-explicit-constructor)
      : object_(std::addressof(function)), call_(&Call<F>) {}

  R operator()(Args... args) const noexcept(kNoexcept) {
    return call_(object_, std::forward<Args>(args)...);
  }

 private:
  template <typename F>
  static R Call(const void* object, Args... args) {
    return (*static_cast<const F*>(object))(std::forward<Args>(args)...);
  }

  const void* object_;
  R (*call_)(const void*, Args...);  // not noexcept: clang 14 cannot take such an address
};

}  // namespace flashlane::threading

#endif  // FLASHLANE_THREADING_FUNCTION_REF_H_
