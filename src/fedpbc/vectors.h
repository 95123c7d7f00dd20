/* Eight numbers at a time, compiled for several processors. Sixteen at a time where a processor has
   registers for them: then each half does what the eight would do, so that the bits are the same. */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
/* The processor that it runs on decides, not the one that it was compiled on. */
#define FASTEST __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FASTEST
#endif

#define INLINE static inline __attribute__((always_inline))

/* Eight numbers at any address; a processor without such registers takes them in parts. */
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8 };

#define AT(pointer) (*(const eight *)(pointer))
#define PUT(pointer, value) (*(eight *)(pointer) = (value))

/* GCC 11 has no __builtin_shufflevector. */
#if defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && defined(__x86_64__)
#include <immintrin.h>

/* For functions that are called only where IS_WIDE. */
#define WIDE __attribute__((target("arch=x86-64-v4")))
#define IS_WIDE                                                                  \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&  \
     __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && \
     __builtin_cpu_supports("avx512vl"))

typedef float sixteen __attribute__((vector_size(64), aligned(4), may_alias));

#define AT16(pointer) (*(const sixteen *)(pointer))
#define PUT16(pointer, value) (*(sixteen *)(pointer) = (value))
#define BESIDE(low, high) SHUFFLE(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define SHUFFLE __builtin_shufflevector
/* Of both, the first and third of every four numbers, or the second and fourth. */
#define FIRSTS(a, b) SHUFFLE(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30)
#define SECONDS(a, b) SHUFFLE(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31)
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* One number sixteen times, in functions that are WIDE. */
#define EACH(number) ((sixteen)_mm512_set1_ps(number))
/* Eight numbers twice, in functions that are WIDE. A shuffle would keep an adder from its work. */
#define TWICE(pointer) ((sixteen)_mm512_broadcast_f32x8(_mm256_loadu_ps(pointer)))
#endif
