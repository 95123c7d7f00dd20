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
/* For functions that are called only where IS_WIDE. */
#define WIDE __attribute__((target("arch=x86-64-v4")))
#define IS_WIDE                                                                  \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&  \
     __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && \
     __builtin_cpu_supports("avx512vl"))

typedef float sixteen __attribute__((vector_size(64), aligned(4), may_alias));

#define AT16(pointer) (*(const sixteen *)(pointer))
#define PUT16(pointer, value) (*(sixteen *)(pointer) = (value))
#define BESIDE(low, high) \
    __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define LOW(v) __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7)
#define HIGH(v) __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)
#endif
