# Install rules, and the package files with which find_package(flashlane CONFIG) gives flashlane::flashlane.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(flashlane_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/flashlane")

install(TARGETS flashlane EXPORT flashlaneTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}"
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/dispatch/include/flashlane"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# A static library carries its needs to whoever links it.
get_target_property(flashlane_type flashlane TYPE)
set(FLASHLANE_FIND_DEPENDENCIES "")
if(flashlane_type STREQUAL "STATIC_LIBRARY")
  string(APPEND FLASHLANE_FIND_DEPENDENCIES "find_dependency(TBB CONFIG)\nfind_dependency(spdlog CONFIG)\n")
  if(FLASHLANE_HIGHWAY_FROM_SOURCE)
    # Nobody else has the Highway that we built: its archive is installed with ours, under a name that meets no other
    # Highway, as flashlane::hwy.
    set_target_properties(hwy PROPERTIES OUTPUT_NAME flashlane_hwy EXCLUDE_FROM_ALL OFF)
    install(TARGETS hwy EXPORT flashlaneTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  else()
    string(APPEND FLASHLANE_FIND_DEPENDENCIES "find_dependency(hwy 1.2 CONFIG)\n")
  endif()
endif()
if(FLASHLANE_TBB_FROM_SOURCE)
  # oneTBB's own rules install it to the same folder, which the loader does not search by itself.
  set_target_properties(flashlane PROPERTIES INSTALL_RPATH "$ORIGIN")
endif()
if(FLASHLANE_HIGHWAY_FROM_SOURCE)
  # In either library there is Highway's code: its licence goes along.
  install(FILES "${highway_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME LICENSE.highway)
endif()

if(TARGET flashlane_cli)
  install(TARGETS flashlane_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # So that the program finds a shared flashlane wherever the tree is moved.
  file(RELATIVE_PATH flashlane_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(flashlane_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${flashlane_bin_to_lib}")
endif()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/flashlaneConfig.cmake.in" flashlaneConfig.cmake
                              INSTALL_DESTINATION "${flashlane_package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(flashlaneConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/flashlaneConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/flashlaneConfigVersion.cmake"
        DESTINATION "${flashlane_package_dir}")
install(EXPORT flashlaneTargets NAMESPACE flashlane:: DESTINATION "${flashlane_package_dir}")
