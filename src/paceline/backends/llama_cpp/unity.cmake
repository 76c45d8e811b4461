# Compiles llama.cpp in a third of the time, without a change to it: -DCMAKE_PROJECT_INCLUDE=unity.cmake
# Its models are 157 small files, each of which parses the same headers: 24 of them are compiled as one.
# The library of its programs is left out where there are none: llama-cpp-python does not load it.
if(PROJECT_NAME STREQUAL "llama.cpp")
    if(NOT PROJECT_IS_TOP_LEVEL)
        set(LLAMA_BUILD_COMMON OFF)
    endif()
    cmake_language(DEFER CALL set_target_properties llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
endif()
