/* What the processor has. */

#include "vectors.h"

/* Whether functions that are WIDE were compiled, and may be called. */
int fedpbc_has_wide_registers(void)
{
#ifdef WIDE
    return IS_WIDE;
#else
    return 0;
#endif
}
