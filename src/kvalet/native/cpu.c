/* What this library was compiled for, and which instruction sets the processor has. */
#include <string.h>

#include "kvalet.h"

int32_t kvalet_abi(void) {
    return KVALET_ABI;
}

const char *kvalet_isa(void) {
#if defined(KVALET_AVX512) && defined(__AVX512VNNI__)
    return "avx512vnni";
#elif defined(KVALET_AVX512)
    return "avx512";
#elif defined(KVALET_AVX2)
    return "avx2";
#elif defined(KVALET_NEON)
    return "neon";
#else
    return "plain";
#endif
}

int kvalet_cpu_supports(const char *isa) {
    if (strcmp(isa, "plain") == 0)
        return 1;
#if defined(__x86_64__)
    /* Not every compiler knows "f16c" here; no processor has AVX2 without it. */
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx2") == 0)
        return avx2;
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (strcmp(isa, "avx512") == 0)
        return avx512;
    if (strcmp(isa, "avx512vnni") == 0)
        return avx512 && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
    if (strcmp(isa, "neon") == 0)
        return 1;
#endif
    return 0;
}
