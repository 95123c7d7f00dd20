/* Sums over clients, in double precision. */

#include <stddef.h>

#include "vectors.h"

/* total += vector, each number on its own: the bits are those of any other way to do it. */
FASTEST
void fedpbc_add(double *total, const float *vector, ptrdiff_t length)
{
    for (ptrdiff_t k = 0; k < length; k++)
        total[k] += vector[k];
}
