// Uses an installed Flashlane as anybody would: one public header, one call that reaches into the
// library's dispatch.
#include <flashlane/info.h>

#include <iostream>

int main() {
  int count = 0;
  for (const auto& target : flashlane::SupportedTargets()) {
    std::cout << target << "\n";
    ++count;
  }
  if (count == 0) std::cerr << "no instruction set is supported here\n";
  return count == 0 ? 1 : 0;
}
