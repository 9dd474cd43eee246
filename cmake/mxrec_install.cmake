# Installs the engine for C++ projects that use it without TensorFlow (component "engine"):
#   find_package(mxrec REQUIRED)
#   target_link_libraries(app PRIVATE mxrec::engine)
# tests/install builds examples/cpp that way. The Python wheel takes the component "python" instead (tf/CMakeLists.txt).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY MXREC_LIBRARIES)
install(TARGETS ${libraries} EXPORT mxrecTargets COMPONENT engine ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/mxrec
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT engine
  FILES_MATCHING
  PATTERN "*.h"
  PATTERN "internal" EXCLUDE)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mxrec)
install(EXPORT mxrecTargets NAMESPACE mxrec:: DESTINATION ${package_dir} COMPONENT engine)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/mxrecConfig.cmake.in ${PROJECT_BINARY_DIR}/mxrecConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mxrecConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mxrecConfig.cmake ${PROJECT_BINARY_DIR}/mxrecConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/Findisal.cmake
        DESTINATION ${package_dir} COMPONENT engine)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/mxrec COMPONENT engine)
