// What AMX refuses ends the program, and what is not AMX is not the emulator's business.

#include <gtest/gtest.h>

#include "tests/support/amx_emulator.h"

#if defined(__x86_64__) && defined(__linux__)

#include <signal.h>
#include <ucontext.h>

#include <cstdlib>
#include <ostream>
#include <string>

#include "tests/support/amx_asm.h"

namespace flashlane::testing {
namespace {

using amx::AmxTest;
using amx::Config;

struct FaultCase {
  const char* name;
  int signal;
  const char* message;
  void (*run)();
};
void PrintTo(const FaultCase& fault, std::ostream* out) { *out << fault.name; }

uint8_t memory[1024];

// ldtilecfg with one byte of a good configuration changed.
template <int kByte, int kValue>
void ConfigureWith() {
  Config config = Config::AllFull();
  config.bytes[kByte] = kValue;
  amx::Configure(config);
}

// c, a and b of these shapes are multiplied.
template <int kRowsC, int kColsbC, int kRowsA, int kColsbA, int kRowsB, int kColsbB>
void MultiplyShapes() {
  amx::Configure(Config().Set(0, kRowsC, kColsbC).Set(1, kRowsA, kColsbA).Set(2, kRowsB, kColsbB));
  amx::Multiply<0, 1, 2>();
}

// tdpbf16ps in bytes: assemblers refuse the same register twice.
template <int kC, int kA, int kB>
void MultiplySame() {
  amx::Configure(Config::AllFull());
  constexpr int kVexF3 = (~kB & 15) << 3 | 2;
  constexpr int kModRm = 0xC0 | kC << 3 | kA;
  asm volatile(".byte 0xC4, 0xE2, %c0, 0x5C, %c1" ::"i"(kVexF3), "i"(kModRm) : "memory");
}

template <void (*kUse)()>
void AfterRelease() {
  amx::Configure(Config::AllFull());
  amx::Release();
  kUse();
}

// Only tile 0 is configured.
template <void (*kUse)()>
void WithOneTile(int rows = 16, int colsb = 64) {
  amx::Configure(Config().Set(0, rows, colsb));
  kUse();
}

void LoadTile0() { amx::Load<0>(memory, 64); }
void LoadTile1() { amx::Load<1>(memory, 64); }
void StoreTile0() { amx::Store<0>(memory, 64); }
void StoreTile1() { amx::Store<1>(memory, 64); }

const FaultCase kFaults[] = {
    {"LoadUnconfigured", SIGILL, "not configured", LoadTile0},
    {"LoadAfterRelease", SIGILL, "released", AfterRelease<LoadTile0>},
    {"StoreAfterRelease", SIGILL, "released", AfterRelease<StoreTile0>},
    {"ZeroAfterRelease", SIGILL, "released", AfterRelease<amx::Zero<0>>},
    {"ProductAfterRelease", SIGILL, "released", AfterRelease<amx::Multiply<0, 1, 2>>},
    {"LoadAfterPalette0", SIGILL, "released",
     [] {
       ConfigureWith<0, 0>();
       LoadTile0();
     }},
    {"Palette2", SIGSEGV, "palette", ConfigureWith<0, 2>},
    {"Reserved2", SIGSEGV, "reserved", ConfigureWith<2, 1>},
    {"Reserved15", SIGSEGV, "reserved", ConfigureWith<15, 1>},
    {"Reserved32", SIGSEGV, "reserved", ConfigureWith<32, 64>},
    {"Reserved47", SIGSEGV, "reserved", ConfigureWith<47, 1>},
    {"Reserved56", SIGSEGV, "reserved", ConfigureWith<56, 16>},
    {"Reserved63", SIGSEGV, "reserved", ConfigureWith<63, 1>},
    {"Rows17", SIGSEGV, "16 rows", ConfigureWith<55, 17>},
    {"Colsb65", SIGSEGV, "64 bytes", ConfigureWith<30, 65>},
    {"Colsb256", SIGSEGV, "64 bytes", ConfigureWith<17, 1>},
    {"RowsWithoutColsb", SIGSEGV, "only one", ConfigureWith<16, 0>},
    {"ColsbWithoutRows", SIGSEGV, "only one", ConfigureWith<48, 0>},
    {"LoadOtherTile", SIGILL, "this tile", [] { WithOneTile<LoadTile1>(); }},
    {"StoreOtherTile", SIGILL, "this tile", [] { WithOneTile<StoreTile1>(); }},
    {"ZeroOtherTile", SIGILL, "this tile", [] { WithOneTile<amx::Zero<1>>(); }},
    {"ProductOtherTile", SIGILL, "this tile", [] { WithOneTile<amx::Multiply<0, 1, 2>>(); }},
    {"LoadColsb6", SIGILL, "multiple of 4", [] { WithOneTile<LoadTile0>(2, 6); }},
    {"StoreColsb63", SIGILL, "multiple of 4", [] { WithOneTile<StoreTile0>(2, 63); }},
    {"ProductColsb6", SIGILL, "multiple of 4", MultiplyShapes<2, 6, 2, 4, 1, 6>},
    {"RowsOfA", SIGILL, "rows of c and a", MultiplyShapes<4, 16, 5, 8, 2, 16>},
    {"ColumnsOfB", SIGILL, "columns of c and b", MultiplyShapes<4, 16, 4, 8, 2, 20>},
    {"Depth", SIGILL, "rows of b", MultiplyShapes<4, 16, 4, 8, 3, 16>},
    {"SameCA", SIGILL, "twice", MultiplySame<1, 1, 2>},
    {"SameCB", SIGILL, "twice", MultiplySame<1, 2, 1>},
    {"SameAB", SIGILL, "twice", MultiplySame<1, 2, 2>},
    // tileloadd (%rdi,%rsi,1), %tmm8: VEX.R names a tile that does not exist.
    {"LoadTile8", SIGILL, "no such tile",
     [] {
       amx::Configure(Config::AllFull());
       asm volatile(".byte 0xC4, 0x62, 0x7B, 0x4B, 0x04, 0x37" ::"D"(memory), "S"(int64_t{64})
                    : "memory");
     }},
};

class AmxFaultTest : public AmxTest, public ::testing::WithParamInterface<FaultCase> {};

TEST_P(AmxFaultTest, EndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const FaultCase& fault = GetParam();
  if (AmxHardwareUsable()) {  // a sanitizer may make of the signal an exit of its own
    EXPECT_DEATH(fault.run(), "");
  } else {
    EXPECT_EXIT(fault.run(), ::testing::KilledBySignal(fault.signal), fault.message);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AmxFaultTest, ::testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- other illegal instructions

void IllegalInstruction() { asm volatile("ud2"); }

TEST(AmxOtherInstructionsTest, EndTheProgramAsEver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        InstallAmxEmulator();
        IllegalInstruction();
      },
      ::testing::KilledBySignal(SIGILL), "");
  EXPECT_EXIT(
      {
        InstallAmxEmulator();
        raise(SIGILL);
      },
      ::testing::KilledBySignal(SIGILL), "");
}

volatile sig_atomic_t seen = 0;

void SkipUd2(int, siginfo_t*, void* context) {
  seen = seen + 1;
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] += 2;
}

// 0 if the handler that was there first got the ud2, and the emulator the rest.
int CallBoth() {
  struct sigaction action = {};
  action.sa_sigaction = SkipUd2;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGILL, &action, nullptr) != 0) return 1;
  // Twice: an emulator that took itself for its predecessor would never return.
  const bool first = InstallAmxEmulator();
  const bool second = InstallAmxEmulator();
  if (first != second) return 2;
  amx::Configure(Config::AllFull());
  IllegalInstruction();
  amx::Load<0>(memory, 64);
  IllegalInstruction();
  amx::Release();
  return seen == 2 ? 0 : 3;
}

TEST(AmxOtherInstructionsTest, ReachTheHandlerThatWasThereFirst) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process that has no emulator yet
  EXPECT_EXIT(std::exit(CallBoth()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace flashlane::testing

#endif
