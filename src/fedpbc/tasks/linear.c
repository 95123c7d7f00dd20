/* Large dense layers of a local step: a batch's outputs, and the way back with the step of SGD.

   A long sum is cut into blocks, as BLAS does it, whose sums are then added; with the length of a block
   that this processor's BLAS has, the bits are its. Only for processors whose registers hold sixteen
   numbers. A batch has at most sixteen samples here, widths are multiples of 32. */

#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

#ifdef WIDE

enum { WIDTH = 16, GROUP = 8 };

/* packed: [inputs, 16], the samples side by side, zeros where there are fewer. */
WIDE static void side_by_side(const float *in, ptrdiff_t batch, ptrdiff_t inputs, float *packed)
{
    int32_t places[WIDTH];
    for (int m = 0; m < WIDTH; m++)
        places[m] = (int32_t)(m < batch ? m * inputs : 0);
    __m512i at = _mm512_loadu_si512(places);
    __mmask16 there = (__mmask16)((1u << batch) - 1);
    for (ptrdiff_t k = 0; k < inputs; k++)
        _mm512_storeu_ps(packed + k * WIDTH,
                         _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, at, in + k, 4));
}

/* out[m][n] = bias[n] + x[m] . weight[n], in blocks of `block` inputs. room: 16 for each input. */
WIDE
void fedpbc_linear(const float *in, ptrdiff_t batch, ptrdiff_t inputs, ptrdiff_t outputs,
                   const float *weight, const float *bias, ptrdiff_t block, float *out, float *room)
{
    side_by_side(in, batch, inputs, room);
    for (ptrdiff_t n = 0; n < outputs; n += WIDTH) {
        float totals[WIDTH][WIDTH];
        for (int r = 0; r < WIDTH; r++)
            PUT16(totals[r], EACH(bias[n + r]));
        for (ptrdiff_t first = 0; first < inputs; first += block) {
            ptrdiff_t end = first + block < inputs ? first + block : inputs;
            const float *w = weight + n * inputs;
            sixteen sums[WIDTH];
            for (int r = 0; r < WIDTH; r++)
                sums[r] = (sixteen){0};
            for (ptrdiff_t k = first; k < end; k++) {
                sixteen x = AT16(room + k * WIDTH);
                for (int r = 0; r < WIDTH; r++)
                    sums[r] += EACH(w[r * inputs + k]) * x;
            }
            for (int r = 0; r < WIDTH; r++)
                PUT16(totals[r], AT16(totals[r]) + sums[r]);
        }
        for (ptrdiff_t m = 0; m < batch; m++)
            for (int r = 0; r < WIDTH; r++)
                out[m * outputs + n + r] = totals[r][m];
    }
}

/* sums[m] += sum over eight rows n of grad[m][n] weight[n], at 32 columns; from zero if `fresh`. */
WIDE INLINE void add_group(int count, int fresh, const float *grad, ptrdiff_t outputs,
                           const sixteen w[GROUP][2], float *sums, ptrdiff_t inputs)
{
    sixteen s[4][2];
    for (int m = 0; m < count; m++)
        for (int half = 0; half < 2; half++)
            s[m][half] = fresh ? (sixteen){0} : AT16(sums + m * inputs + half * WIDTH);
    for (int n = 0; n < GROUP; n++)
        for (int m = 0; m < count; m++) {
            sixteen g = EACH(grad[m * outputs + n]);
            s[m][0] += g * w[n][0], s[m][1] += g * w[n][1];
        }
    for (int m = 0; m < count; m++)
        for (int half = 0; half < 2; half++)
            PUT16(sums + m * inputs + half * WIDTH, s[m][half]);
}

WIDE INLINE void add_groups(int fresh, const float *grad, ptrdiff_t batch, ptrdiff_t outputs,
                            const float *weight, float *sums, ptrdiff_t inputs)
{
    sixteen w[GROUP][2];
    for (int n = 0; n < GROUP; n++)
        for (int half = 0; half < 2; half++)
            w[n][half] = AT16(weight + n * inputs + half * WIDTH);
    ptrdiff_t m = 0;
    for (; m + 4 <= batch; m += 4)
        add_group(4, fresh, grad + m * outputs, outputs, w, sums + m * inputs, inputs);
    for (; m < batch; m++)
        add_group(1, fresh, grad + m * outputs, outputs, w, sums + m * inputs, inputs);
}

/* weight[n] -= sum over m of grad[m][n] x[m], for eight rows at 32 columns. */
WIDE INLINE void descend_group(const float *grad, const float *in, ptrdiff_t batch,
                               ptrdiff_t outputs, float *weight, ptrdiff_t inputs)
{
    sixteen s[GROUP][2];
    for (int n = 0; n < GROUP; n++)
        s[n][0] = s[n][1] = (sixteen){0};
    for (ptrdiff_t m = 0; m < batch; m++) {
        sixteen first = AT16(in + m * inputs), second = AT16(in + m * inputs + WIDTH);
        for (int n = 0; n < GROUP; n++) {
            sixteen g = EACH(grad[m * outputs + n]);
            s[n][0] += g * first, s[n][1] += g * second;
        }
    }
    for (int n = 0; n < GROUP; n++)
        for (int half = 0; half < 2; half++) {
            float *w = weight + n * inputs + half * WIDTH;
            PUT16(w, AT16(w) - s[n][half]);
        }
}

/* below[m] = sum over n of grad[m][n] weight[n], in blocks of `block` outputs, then the step: grad is
   already times the rate. below: or null. room: as many as below has. */
WIDE
void fedpbc_linear_step(const float *grad, const float *in, ptrdiff_t batch, ptrdiff_t inputs,
                        ptrdiff_t outputs, float *weight, ptrdiff_t block, float *below, float *room)
{
    for (ptrdiff_t n = 0; n < outputs; n += GROUP) {
        int fresh = n % block == 0;
        float *sums = n < block ? below : room;
        for (ptrdiff_t k = 0; k < inputs; k += 2 * WIDTH) {
            float *w = weight + n * inputs + k;
            if (below && fresh)
                add_groups(1, grad + n, batch, outputs, w, sums + k, inputs);
            else if (below)
                add_groups(0, grad + n, batch, outputs, w, sums + k, inputs);
            descend_group(grad + n, in + k, batch, outputs, w, inputs);
        }
        if (below && sums == room && ((n + GROUP) % block == 0 || n + GROUP == outputs))
            for (ptrdiff_t k = 0; k < batch * inputs; k++)
                below[k] += room[k];
    }
}

#endif
