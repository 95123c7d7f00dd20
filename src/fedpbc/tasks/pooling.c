/* ReLU followed by 2x2 max-pooling, forward and backward, in one pass over the memory each.

   Images are channels-last: [count, height, width, channels] with even height and width. A window's
   first largest value is kept, as in PyTorch, so that both passes return the bits of its operators. */

#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

typedef int32_t eight_int __attribute__((vector_size(32)));
typedef int8_t eight_byte __attribute__((vector_size(8), aligned(1), may_alias));

/* What `winner` says of a window without a value above zero: no input gets its gradient. */
enum { NONE = 4 };

#define EITHER(mask, yes, no) ((eight)(((mask) & (eight_int)(yes)) | (~(mask) & (eight_int)(no))))

/* The k-th value of a window takes the place of the largest so far if it is larger or not a number. */
#define CHALLENGE(k, value)                               \
    do {                                                  \
        eight v = (value);                                \
        eight_int wins = (v > best) | (v != v);           \
        best = EITHER(wins, v, best);                     \
        which = (wins & (k)) | (~wins & which);           \
    } while (0)

/* out, winner: [count, height / 2, width / 2, channels]. */
FASTEST
void fedpbc_relu_pool(const float *in, ptrdiff_t count, ptrdiff_t height, ptrdiff_t width,
                      ptrdiff_t channels, float *out, int8_t *winner)
{
    ptrdiff_t row = width * channels;
    for (ptrdiff_t y = 0; y < count * height / 2; y++)
        for (ptrdiff_t x = 0; x < width / 2; x++) {
            const float *window = in + 2 * (y * row + x * channels);
            for (ptrdiff_t c = 0; c < channels; c += LANES) {
                const float *at = window + c;
                eight best = AT(at), zero = {0};
                eight_int which = {0};
                CHALLENGE(1, AT(at + channels));
                CHALLENGE(2, AT(at + row));
                CHALLENGE(3, AT(at + row + channels));
                eight_int low = best <= 0;
                which = (low & NONE) | (~low & which);
                PUT(out + c, EITHER(low, zero, best));
                *(eight_byte *)(winner + c) = __builtin_convertvector(which, eight_byte);
            }
            out += channels, winner += channels;
        }
}

/* grad, winner: [count, height / 2, width / 2, channels]; below: as the input. */
FASTEST
void fedpbc_relu_pool_backward(const float *grad, const int8_t *winner, ptrdiff_t count,
                               ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels, float *below)
{
    ptrdiff_t row = width * channels;
    for (ptrdiff_t y = 0; y < count * height / 2; y++)
        for (ptrdiff_t x = 0; x < width / 2; x++) {
            float *window = below + 2 * (y * row + x * channels);
            for (ptrdiff_t c = 0; c < channels; c += LANES) {
                float *at = window + c;
                eight_int g = (eight_int)AT(grad + c);
                eight_int which = __builtin_convertvector(*(const eight_byte *)(winner + c), eight_int);
                PUT(at, (eight)((which == 0) & g));
                PUT(at + channels, (eight)((which == 1) & g));
                PUT(at + row, (eight)((which == 2) & g));
                PUT(at + row + channels, (eight)((which == 3) & g));
            }
            grad += channels, winner += channels;
        }
}
