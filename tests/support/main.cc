// main of every test program: GoogleTest's, after AMX has been made available where it can be.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "dispatch/amx.h"
#include "dispatch/target.h"
#include "tests/support/amx_emulator.h"

int main(int argc, char** argv) {
  // The target AMX is tested on every machine whose vectors it can work with: on the unit itself,
  // or in software.
  if (flashlane::WhyNoAmx() != nullptr && flashlane::testing::InstallAmxEmulator()) {
    flashlane::AssumeAmxForTest();
  }
  ::testing::InitGoogleTest(&argc, argv);
  if (!GTEST_FLAG_GET(list_tests)) {
    std::string targets;
    for (const flashlane::Target& target : flashlane::SupportedTargetList()) {
      targets += std::string(" ") + target.name;
    }
    std::printf("targets:%s%s\n", targets.c_str(),
                flashlane::testing::InstallAmxEmulator() ? " (AMX in software)" : "");
  }
  return RUN_ALL_TESTS();
}
