/* b64 and w16: sixteen rows of four bytes, and sixteen int32 lanes, one a row. Integers, so any way
 * of adding gives the same sums. Spelled per instruction set like v16 (simd.h). */
#ifndef KVALET_BYTES_H
#define KVALET_BYTES_H

#include "simd.h"

#if defined(KVALET_AVX512)
#include "bytes_avx512.h"
#elif defined(KVALET_AVX2)
#include "bytes_avx2.h"
#else
#include "bytes_plain.h"
#endif

#endif
