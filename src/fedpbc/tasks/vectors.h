/* Eight numbers at a time, compiled for several processors. */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
/* The processor that it runs on decides, not the one that it was compiled on. */
#define FASTEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FASTEST
#endif

/* Eight numbers at any address; a processor without such registers takes them in parts. */
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8 };

#define AT(pointer) (*(const eight *)(pointer))
#define PUT(pointer, value) (*(eight *)(pointer) = (value))
