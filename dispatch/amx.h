// Whether this process may use AMX tiles.
#ifndef FLASHLANE_DISPATCH_AMX_H_
#define FLASHLANE_DISPATCH_AMX_H_

namespace flashlane {

// Null if the CPU has AMX with bf16 and the operating system grants it to this process, which is
// asked for once; else the reason, in words.
const char* WhyNoAmx();

// For tests that emulate the instructions: AMX counts as granted. Call it before anything asks for
// targets.
void AssumeAmxForTest();

}  // namespace flashlane

#endif  // FLASHLANE_DISPATCH_AMX_H_
