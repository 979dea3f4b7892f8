// The forms of the AMX instructions: every register as base and as stride, displacements, and what
// is no AMX instruction at all.

#include <gtest/gtest.h>

#include "tests/support/amx_instruction.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/amx_asm.h"

namespace flashlane::testing {
namespace {

using amx::AmxTest;
using amx::Config;

class AmxEncodingTest : public AmxTest {};

// An instruction whose memory operand has the given registers in it.
struct Form {
  const char* base;
  const char* index;
  int scale;
  int64_t displacement;
  void (*run)(uint64_t base, uint64_t index);
};

// rbp is the frame pointer: it can be kept in a vector register, but not be named as changed.
#define FLASHLANE_FORM(BEFORE, AFTER, BASE, INDEX, SCALE, DISP)                           \
  Form {                                                                                  \
#BASE, #INDEX, SCALE, DISP, [](uint64_t base, uint64_t index) {                         \
      asm volatile("movq %%rbp, %%xmm15\n\t"                                                \
                   "movq %%rax, %%xmm13\n\t"                                                \
                   "movq %%rdx, %%xmm14\n\t"                                                \
                   "movq %%xmm13, %%" #BASE "\n\t"                                          \
                   "movq %%xmm14, %%" #INDEX "\n\t" BEFORE #DISP "(%%" #BASE ",%%" #INDEX   \
                   "," #SCALE ")" AFTER "\n\t"                                              \
                   "movq %%xmm15, %%rbp"                                                    \
                   : "+a"(base), "+d"(index)                                                \
                   :                                                                        \
                   : "rbx", "rcx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",    \
                     "r14", "r15", "xmm13", "xmm14", "xmm15", "memory");                    \
    } \
  }

#define FLASHLANE_LOAD(BASE, INDEX, SCALE, DISP) \
  FLASHLANE_FORM("tileloadd ", ", %%tmm0", BASE, INDEX, SCALE, DISP)
#define FLASHLANE_CONFIGURE(BASE, INDEX, SCALE, DISP) \
  FLASHLANE_FORM("ldtilecfg ", "", BASE, INDEX, SCALE, DISP)

// A base with four strides, and a register as the stride of two bases: no, small and large
// displacements, every scale, and the registers whose numbers mean something else in places.
#define FLASHLANE_FORMS_OF(FORM, REGISTER)                                            \
  FORM(REGISTER, rcx, 1, 0), FORM(REGISTER, r12, 2, 8), FORM(REGISTER, rbp, 4, -128), \
      FORM(REGISTER, r13, 8, 0x1234), FORM(rsi, REGISTER, 1, -0x1000), FORM(r14, REGISTER, 2, 127)
#define FLASHLANE_ALL_FORMS(FORM)                                                                  \
  FLASHLANE_FORMS_OF(FORM, rax), FLASHLANE_FORMS_OF(FORM, rcx), FLASHLANE_FORMS_OF(FORM, rdx),     \
      FLASHLANE_FORMS_OF(FORM, rbx), FLASHLANE_FORMS_OF(FORM, rbp), FLASHLANE_FORMS_OF(FORM, rsi), \
      FLASHLANE_FORMS_OF(FORM, rdi), FLASHLANE_FORMS_OF(FORM, r8), FLASHLANE_FORMS_OF(FORM, r9),   \
      FLASHLANE_FORMS_OF(FORM, r10), FLASHLANE_FORMS_OF(FORM, r11), FLASHLANE_FORMS_OF(FORM, r12), \
      FLASHLANE_FORMS_OF(FORM, r13), FLASHLANE_FORMS_OF(FORM, r14), FLASHLANE_FORMS_OF(FORM, r15)

std::string NameOf(const Form& form) {
  return std::to_string(form.displacement) + "(" + form.base + "," + form.index + "," +
         std::to_string(form.scale) + ")";
}

TEST_F(AmxEncodingTest, LoadsThroughEveryRegister) {
  const Form forms[] = {FLASHLANE_ALL_FORMS(FLASHLANE_LOAD)};
  const std::vector<uint8_t> source = amx::RandomBytes(16 * 200, 1);
  for (const Form& form : forms) {
    if (std::strcmp(form.base, form.index) == 0) continue;  // one register, two values
    for (const int64_t stride : {int64_t{64}, int64_t{200}, int64_t{-72}}) {
      // Where row 0 is: with a negative stride the others lie before it.
      const uint8_t* row_0 = source.data() + (stride < 0 ? -15 * stride : 0);
      std::vector<uint8_t> stored(1024), expected(1024);
      amx::Configure(Config::AllFull());
      form.run(reinterpret_cast<uint64_t>(row_0) - static_cast<uint64_t>(form.displacement),
               static_cast<uint64_t>(stride / form.scale));
      amx::Store<0>(stored.data(), 64);
      amx::Release();
      for (int r = 0; r < 16; ++r) std::copy_n(row_0 + r * stride, 64, &expected[64 * r]);
      ASSERT_EQ(stored, expected) << NameOf(form) << " stride " << stride;
    }
  }
}

TEST_F(AmxEncodingTest, ConfiguresThroughEveryRegister) {
  const Form forms[] = {FLASHLANE_ALL_FORMS(FLASHLANE_CONFIGURE)};
  Config config;
  config.Set(1, 3, 20).Set(6, 16, 64);
  for (const Form& form : forms) {
    if (std::strcmp(form.base, form.index) == 0) continue;
    constexpr uint64_t kIndex = 72;  // part of the address here, not a stride
    form.run(reinterpret_cast<uint64_t>(&config) - static_cast<uint64_t>(form.displacement) -
                 kIndex * static_cast<uint64_t>(form.scale),
             kIndex);
    const Config actual = amx::Configuration();
    amx::Release();
    ASSERT_EQ(0, std::memcmp(&actual, &config, sizeof(Config))) << NameOf(form);
  }
}

// Of static storage, for addresses relative to the instruction.
alignas(64) constinit Config static_config = {};
alignas(64) constinit Config static_copy = {};

TEST_F(AmxEncodingTest, ConfiguresRelativeToTheInstruction) {
  static_config.Set(0, 7, 8);
  asm volatile(
      "ldtilecfg %0\n\t"
      "sttilecfg %1\n\t"
      "tilerelease"
      : "+m"(static_config), "=m"(static_copy)::"memory");
  EXPECT_EQ(0, std::memcmp(&static_config, &static_copy, sizeof(Config)));
}

// rsp is not for a caller to change, so rows lie on the stack: below it, beyond the red zone.
TEST_F(AmxEncodingTest, LoadsAndStoresOnTheStack) {
  const std::vector<uint8_t> source = amx::RandomBytes(1024, 2);
  std::vector<uint8_t> stored(1024);
  amx::Configure(Config::AllFull());
  amx::Load<0>(source.data(), 64);
  asm volatile(
      "subq $8192, %%rsp\n\t"
      "tilestored %%tmm0, (%%rsp,%[stride],1)\n\t"
      "tileloadd (%%rsp,%[stride],1), %%tmm1\n\t"
      "tilestored %%tmm1, 64(%%rsp,%[stride],4)\n\t"
      "tileloadd 64(%%rsp,%[stride],4), %%tmm2\n\t"
      "tilestored %%tmm2, 0x200(%%rsp,%[stride],2)\n\t"
      "tileloadd 0x200(%%rsp,%[stride],2), %%tmm3\n\t"
      "addq $8192, %%rsp" ::[stride] "r"(int64_t{64})
      : "cc", "memory");
  amx::Store<3>(stored.data(), 64);
  amx::Release();
  EXPECT_EQ(stored, source);
}

TEST_F(AmxEncodingTest, NoIndexIsStrideZero) {
  const std::vector<uint8_t> source = amx::RandomBytes(64, 3);
  std::vector<uint8_t> stored(1024), last(64), expected;
  for (int r = 0; r < 16; ++r) expected.insert(expected.end(), source.begin(), source.end());
  amx::Configure(Config::AllFull());
  asm volatile("tileloadd (%0), %%tmm0" ::"r"(source.data()) : "memory");
  amx::Store<0>(stored.data(), 64);
  asm volatile("tilestored %%tmm0, (%0)" ::"r"(last.data()) : "memory");
  amx::Release();
  EXPECT_EQ(stored, expected);
  EXPECT_EQ(last, source);
}

TEST_F(AmxEncodingTest, EveryTileRegister) {
  const std::vector<uint8_t> source = amx::RandomBytes(8 * 1024, 4);
  std::vector<uint8_t> stored(8 * 1024);
  const uint8_t* from = source.data();
  uint8_t* to = stored.data();
  amx::Configure(Config::AllFull());
  amx::Load<0>(from, 64), amx::Load<1>(from + 1024, 64), amx::Load<2>(from + 2048, 64);
  amx::Load<3>(from + 3072, 64), amx::Load<4>(from + 4096, 64), amx::Load<5>(from + 5120, 64);
  amx::Load<6>(from + 6144, 64), amx::Load<7>(from + 7168, 64);
  amx::Store<0>(to, 64), amx::Store<1>(to + 1024, 64), amx::Store<2>(to + 2048, 64);
  amx::Store<3>(to + 3072, 64), amx::Store<4>(to + 4096, 64), amx::Store<5>(to + 5120, 64);
  amx::Store<6>(to + 6144, 64), amx::Store<7>(to + 7168, 64);
  amx::Release();
  EXPECT_EQ(stored, source);
}

}  // namespace
}  // namespace flashlane::testing

#endif

// ---- the decoder by itself: bytes as an assembler writes them

namespace flashlane::testing {
namespace {

using Bytes = std::vector<uint8_t>;
using Op = AmxInstruction::Op;

// Register n holds 1000 * (n + 1).
bool Decode(const Bytes& code, AmxInstruction* instruction) {
  GeneralRegisters registers;
  for (uint64_t r = 0; r < 16; ++r) registers.value[r] = 1000 * (r + 1);
  return DecodeAmxInstruction(code.data(), registers, instruction);
}

TEST(AmxDecoderTest, MemoryWithoutBase) {
  AmxInstruction instruction;
  // tileloadd 0x1234(,%rcx,1), %tmm1
  ASSERT_TRUE(Decode({0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x0D, 0x34, 0x12, 0, 0}, &instruction));
  EXPECT_EQ(instruction.op, Op::kLoad);
  EXPECT_EQ(instruction.length, 10);
  EXPECT_EQ(instruction.reg, 1);
  EXPECT_EQ(instruction.address, 0x1234u);
  EXPECT_EQ(instruction.stride, 2000u);
  // The same with VEX.B, by which r13's number means no base either.
  ASSERT_TRUE(Decode({0xC4, 0xC2, 0x7B, 0x4B, 0x0C, 0x0D, 0x34, 0x12, 0, 0}, &instruction));
  EXPECT_EQ(instruction.address, 0x1234u);
  // tileloadd 0x1234, %tmm1
  ASSERT_TRUE(Decode({0xC4, 0xE2, 0x7B, 0x4B, 0x0C, 0x25, 0x34, 0x12, 0, 0}, &instruction));
  EXPECT_EQ(instruction.address, 0x1234u);
  EXPECT_EQ(instruction.stride, 0u);
  // ldtilecfg -2(%rip)
  const Bytes relative = {0xC4, 0xE2, 0x78, 0x49, 0x05, 0xFE, 0xFF, 0xFF, 0xFF};
  ASSERT_TRUE(Decode(relative, &instruction));
  EXPECT_EQ(instruction.op, Op::kLoadConfig);
  EXPECT_EQ(instruction.address, reinterpret_cast<uint64_t>(relative.data() + 7));
}

TEST(AmxDecoderTest, Registers) {
  AmxInstruction instruction;
  // tdpbf16ps %tmm7, %tmm6, %tmm5
  ASSERT_TRUE(Decode({0xC4, 0xE2, 0x42, 0x5C, 0xEE}, &instruction));
  EXPECT_EQ(instruction.op, Op::kProduct);
  EXPECT_EQ(instruction.length, 5);
  EXPECT_EQ(instruction.reg, 5);
  EXPECT_EQ(instruction.rm, 6);
  EXPECT_EQ(instruction.vvvv, 7);
  // The same with the top bit of each register: tiles that do not exist.
  ASSERT_TRUE(Decode({0xC4, 0x42, 0x02, 0x5C, 0xEE}, &instruction));
  EXPECT_EQ(instruction.reg, 13);
  EXPECT_EQ(instruction.rm, 14);
  EXPECT_EQ(instruction.vvvv, 15);
  ASSERT_TRUE(Decode({0xC4, 0xE2, 0x78, 0x49, 0xC0}, &instruction));
  EXPECT_EQ(instruction.op, Op::kRelease);
  ASSERT_TRUE(Decode({0xC4, 0xE2, 0x7B, 0x49, 0xF8}, &instruction));
  EXPECT_EQ(instruction.op, Op::kZero);
  EXPECT_EQ(instruction.reg, 7);
}

TEST(AmxDecoderTest, RefusesAllElse) {
  const Bytes others[] = {
      {0x0F, 0x0B},                          // ud2
      {0xC5, 0xF8, 0x49, 0xC0, 0},           // two-byte VEX
      {0xC4, 0xE1, 0x78, 0x49, 0xC0},        // another map
      {0xC4, 0xE2, 0xF8, 0x49, 0xC0},        // W
      {0xC4, 0xE2, 0x7C, 0x49, 0xC0},        // L
      {0xC4, 0xE2, 0x70, 0x49, 0xC0},        // tilerelease with vvvv
      {0xC4, 0xE2, 0x78, 0x49, 0xC8},        // tilerelease with reg 1
      {0xC4, 0xE2, 0x7B, 0x49, 0xC1},        // tilezero with rm 1
      {0xC4, 0xE2, 0x7A, 0x49, 0xC0},        // F3 49
      {0xC4, 0xE2, 0x78, 0x49, 0x0F},        // ldtilecfg with reg 1
      {0xC4, 0xE2, 0x7B, 0x49, 0x07},        // F2 49 with memory
      {0xC4, 0xE2, 0x7B, 0x4B, 0x07},        // tileloadd without SIB
      {0xC4, 0xE2, 0x7B, 0x4B, 0xC4},        // tileloadd of a register
      {0xC4, 0xE2, 0x73, 0x4B, 0x04, 0x37},  // tileloadd with vvvv
      {0xC4, 0xE2, 0x78, 0x4B, 0x04, 0x37},  // NP 4B
      {0xC4, 0xE2, 0x72, 0x5C, 0x1A},        // tdpbf16ps of memory
      {0xC4, 0xE2, 0x73, 0x5C, 0xDA},        // tdpfp16ps
      {0xC4, 0xE2, 0x73, 0x5E, 0xDA},        // tdpbssd
  };
  for (const Bytes& bytes : others) {
    AmxInstruction instruction;
    EXPECT_FALSE(Decode(bytes, &instruction)) << ::testing::PrintToString(bytes);
  }
}

}  // namespace
}  // namespace flashlane::testing
