// Marks what the library offers to its users; in a shared library nothing else is visible.
#ifndef FLASHLANE_EXPORT_H_
#define FLASHLANE_EXPORT_H_

#if defined(__GNUC__) || defined(__clang__)
#define FLASHLANE_API __attribute__((visibility("default")))
#else
#define FLASHLANE_API
#endif

#endif  // FLASHLANE_EXPORT_H_
