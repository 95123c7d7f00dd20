/* A 3x3 convolution with a border of zeros, ReLU and 2x2 max-pooling in one pass, forward and backward.

   Images are channels-last, [count, height, width, channels], with even height and width; weights are
   [outputs, 3, 3, inputs]. Only for processors whose registers hold sixteen numbers. Every sum is made
   in the order of oneDNN's operators there, so that the bits are theirs; what calls these functions
   makes sure of it. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

#ifdef WIDE

/* WIDTH: numbers in a register. BLOCK: output channels side by side in packed weights, two registers.
   WINDOWS: pooling windows at once. NONE: what `winner` says of a window without a value above zero.
   IMAGE_ROWS: rows of an image that stay in the cache. ROW_SUMS_FROM: with so many input channels,
   oneDNN makes a sum for each row of an image. STAGES: see stage_power. */
enum {
    SIDE = 3,
    WIDTH = 16,
    BLOCK = 2 * WIDTH,
    WINDOWS = 2,
    NONE = 4,
    IMAGE_ROWS = 4,
    ROW_SUMS_FROM = 16,
    STAGES = 4
};

struct sizes {
    ptrdiff_t count, height, width, inputs, outputs;
};

/* A border of zeros around a padded image. */
static void clear_border(float *padded, ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels)
{
    ptrdiff_t row = (width + 2) * channels;
    memset(padded, 0, row * sizeof(float));
    for (ptrdiff_t y = 1; y <= height; y++) {
        memset(padded + y * row, 0, channels * sizeof(float));
        memset(padded + (y + 1) * row - channels, 0, channels * sizeof(float));
    }
    memset(padded + (height + 1) * row, 0, row * sizeof(float));
}

/* An image inside its border. */
INLINE void into_middle(const float *image, struct sizes s, float *padded)
{
    ptrdiff_t length = s.width * s.inputs, row = length + 2 * s.inputs;
    for (ptrdiff_t y = 0; y < s.height; y++)
        memcpy(padded + (y + 1) * row + s.inputs, image + y * length, length * sizeof(float));
}

/* packed: [outputs / BLOCK, 3, 3, inputs, BLOCK] */
static void pack(const float *weight, struct sizes s, float *packed)
{
    ptrdiff_t taps = SIDE * SIDE * s.inputs;
    for (ptrdiff_t o = 0; o < s.outputs; o++)
        for (ptrdiff_t k = 0; k < taps; k++)
            packed[o / BLOCK * BLOCK * taps + k * BLOCK + o % BLOCK] = weight[o * taps + k];
}

/* The weights of the way back, from outputs to inputs: [inputs / BLOCK, 3, 3, outputs, BLOCK] */
static void pack_flipped(const float *weight, struct sizes s, float *packed)
{
    for (ptrdiff_t i = 0; i < s.inputs; i += BLOCK)
        for (int tap = SIDE * SIDE - 1; tap >= 0; tap--)
            for (ptrdiff_t o = 0; o < s.outputs; o++, packed += BLOCK)
                memcpy(packed, weight + (o * SIDE * SIDE + tap) * s.inputs + i,
                       BLOCK * sizeof(float));
}

/* The sums for a BLOCK of output channels at each pixel of pooling windows side by side, two rows of
   them. `at`: the first input of the first pixel, in the padded image. */
WIDE INLINE void window_sums(sixteen sums[][2], int windows, const float *at, ptrdiff_t row,
                             ptrdiff_t inputs, const float *packed)
{
    for (int k = 0; k < 4 * windows; k++)
        sums[k][0] = sums[k][1] = (sixteen){0};
    for (int y = 0; y < SIDE; y++, at += row)
        /* Three neighbours in a row, with all their channels, stand side by side. */
        for (ptrdiff_t j = 0; j < SIDE * inputs; j++, packed += BLOCK) {
            sixteen first = AT16(packed), second = AT16(packed + WIDTH);
            for (int k = 0; k < 4 * windows; k++) {
                ptrdiff_t pixel = k / (2 * windows) * row + k % (2 * windows) * inputs;
                sixteen value = EACH(at[pixel + j]);
                sums[k][0] += value * first, sums[k][1] += value * second;
            }
        }
}

/* The k-th value of a window takes the place of the largest so far if it is larger or not a number. */
#define CHALLENGE(k, value)                                                   \
    do {                                                                      \
        __m512 v = (__m512)(value);                                           \
        __mmask16 wins = _mm512_cmp_ps_mask(v, best, _CMP_GT_OQ) |            \
                         _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);              \
        best = _mm512_mask_mov_ps(best, wins, v);                             \
        which = _mm512_mask_mov_epi32(which, wins, _mm512_set1_epi32(k));     \
    } while (0)

/* The largest of a window's values where it is above zero, and which it is: the first of equal ones. */
WIDE INLINE void pool(sixteen a, sixteen b, sixteen c, sixteen d, float *out, int8_t *winner)
{
    __m512 best = (__m512)a;
    __m512i which = _mm512_setzero_si512();
    CHALLENGE(1, b);
    CHALLENGE(2, c);
    CHALLENGE(3, d);
    __mmask16 low = _mm512_cmp_ps_mask(best, _mm512_setzero_ps(), _CMP_LE_OQ);
    which = _mm512_mask_mov_epi32(which, low, _mm512_set1_epi32(NONE));
    _mm512_storeu_ps(out, _mm512_maskz_mov_ps((__mmask16)~low, best));
    _mm_storeu_si128((__m128i *)winner, _mm512_cvtepi32_epi8(which));
}

/* The way back: the gradient goes to the value that was the largest. */
WIDE INLINE void unpool(const float *grad, const int8_t *winner, float *a, float *b, float *c,
                        float *d)
{
    __m512 g = _mm512_loadu_ps(grad);
    __m512i which = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)winner));
    float *values[] = {a, b, c, d};
    for (int k = 0; k < 4; k++) {
        __mmask16 won = _mm512_cmpeq_epi32_mask(which, _mm512_set1_epi32(k));
        _mm512_storeu_ps(values[k], _mm512_maskz_mov_ps(won, g));
    }
}

WIDE INLINE void pooled_windows(int windows, const float *at, struct sizes s, const float *packed,
                                const float *bias, float *out, int8_t *winner)
{
    sixteen v[4 * WINDOWS][2];
    window_sums(v, windows, at, (s.width + 2) * s.inputs, s.inputs, packed);
    for (int half = 0; half < 2; half++) {
        sixteen b = AT16(bias + half * WIDTH);
        for (int w = 0; w < windows; w++) {
            int top = 2 * w, under = 2 * (windows + w);
            ptrdiff_t place = w * s.outputs + half * WIDTH;
            pool(v[top][half] + b, v[top + 1][half] + b, v[under][half] + b, v[under + 1][half] + b,
                 out + place, winner + place);
        }
    }
}

/* What comes out of convolution, ReLU and pooling of one image. */
WIDE INLINE void pooled_image(const float *padded, struct sizes s, const float *packed,
                              const float *bias, float *out, int8_t *winner)
{
    ptrdiff_t row = (s.width + 2) * s.inputs, taps = SIDE * SIDE * s.inputs;
    for (ptrdiff_t y = 0; y < s.height / 2; y++)
        for (ptrdiff_t c = 0; c < s.outputs; c += BLOCK) {
            const float *top = padded + 2 * y * row, *own = packed + c * taps;
            ptrdiff_t x = 0, place = y * (s.width / 2) * s.outputs + c;
            for (; x + WINDOWS <= s.width / 2; x += WINDOWS, place += WINDOWS * s.outputs)
                pooled_windows(WINDOWS, top + 2 * x * s.inputs, s, own, bias + c, out + place,
                               winner + place);
            for (; x < s.width / 2; x++, place += s.outputs)
                pooled_windows(1, top + 2 * x * s.inputs, s, own, bias + c, out + place,
                               winner + place);
        }
}

WIDE INLINE void plain_windows(int windows, const float *at, struct sizes s, const float *packed,
                               float *out)
{
    sixteen v[4 * WINDOWS][2];
    window_sums(v, windows, at, (s.width + 2) * s.inputs, s.inputs, packed);
    for (int k = 0; k < 4 * windows; k++) {
        float *o = out + (k / (2 * windows) * s.width + k % (2 * windows)) * s.outputs;
        PUT16(o, v[k][0]), PUT16(o + WIDTH, v[k][1]);
    }
}

/* What comes out of the convolution of one image alone, without a bias. */
WIDE INLINE void plain_image(const float *padded, struct sizes s, const float *packed, float *out)
{
    ptrdiff_t row = (s.width + 2) * s.inputs, taps = SIDE * SIDE * s.inputs;
    for (ptrdiff_t y = 0; y < s.height; y += 2)
        for (ptrdiff_t c = 0; c < s.outputs; c += BLOCK) {
            const float *top = padded + y * row, *own = packed + c * taps;
            float *o = out + y * s.width * s.outputs + c;
            ptrdiff_t x = 0;
            for (; x + 2 * WINDOWS <= s.width; x += 2 * WINDOWS)
                plain_windows(WINDOWS, top + x * s.inputs, s, own, o + x * s.outputs);
            for (; x < s.width; x += 2)
                plain_windows(1, top + x * s.inputs, s, own, o + x * s.outputs);
        }
}

/* `taps` rows of the weight's gradient, from one row of an image: `of_row` is their sum over its
   pixels, which is then added; otherwise each pixel is added to the total in turn. */
WIDE INLINE void add_taps(int taps, int of_row, const float *at, const float *grad, struct sizes s,
                          float *total)
{
    sixteen sums[12][2];
    for (int j = 0; j < taps; j++)
        for (int half = 0; half < 2; half++)
            sums[j][half] = of_row ? (sixteen){0} : AT16(total + j * s.outputs + half * WIDTH);
    for (ptrdiff_t x = 0; x < s.width; x++, at += s.inputs, grad += s.outputs) {
        sixteen first = AT16(grad), second = AT16(grad + WIDTH);
        for (int j = 0; j < taps; j++) {
            sixteen value = EACH(at[j]);
            sums[j][0] += value * first, sums[j][1] += value * second;
        }
    }
    for (int j = 0; j < taps; j++)
        for (int half = 0; half < 2; half++) {
            float *t = total + j * s.outputs + half * WIDTH;
            if (of_row)
                sums[j][half] += AT16(t);
            PUT16(t, sums[j][half]);
        }
}

/* One image's part of the weight's gradient, [3, 3, inputs, outputs]. Both images are padded. */
WIDE INLINE void add_weight_gradient(int of_rows, const float *padded, const float *grad,
                                     struct sizes s, float *total)
{
    ptrdiff_t row = (s.width + 2) * s.inputs, grad_row = (s.width + 2) * s.outputs;
    ptrdiff_t across = SIDE * s.inputs;
    for (ptrdiff_t top = 0; top < s.height; top += IMAGE_ROWS)
        for (ptrdiff_t c = 0; c < s.outputs; c += BLOCK)
            for (ptrdiff_t j = 0; j < SIDE * across;) {
                /* As many at once as there are registers for, of one row of three neighbours. */
                ptrdiff_t left = across - j % across, taps = left >= 12 ? 12 : left >= 9 ? 9 : SIDE;
                for (ptrdiff_t y = top; y < top + IMAGE_ROWS && y < s.height; y++) {
                    const float *at = padded + (y + j / across) * row + j % across;
                    const float *g = grad + (y + 1) * grad_row + s.outputs + c;
                    float *t = total + j * s.outputs + c;
                    if (taps == 12)
                        add_taps(12, of_rows, at, g, s, t);
                    else if (taps == 9)
                        add_taps(9, of_rows, at, g, s, t);
                    else
                        add_taps(SIDE, of_rows, at, g, s, t);
                }
                j += taps;
            }
}

/* The gradient before pooling and ReLU, in the middle of a padded image. */
WIDE INLINE void unpool_image(const float *grad, const int8_t *winner, struct sizes s, float *padded)
{
    ptrdiff_t row = (s.width + 2) * s.outputs;
    for (ptrdiff_t y = 0; y < s.height / 2; y++)
        for (ptrdiff_t x = 0; x < s.width / 2; x++)
            for (ptrdiff_t c = 0; c < s.outputs; c += WIDTH, grad += WIDTH, winner += WIDTH) {
                float *at = padded + (2 * y + 1) * row + (2 * x + 1) * s.outputs + c;
                unpool(grad, winner, at, at + s.outputs, at + row, at + row + s.outputs);
            }
}

/* The bias's gradient is a long sum. PyTorch makes it in stages, which is more exact: so many numbers,
   as a power of two, are added up before their sum goes on to the next stage. */
static ptrdiff_t stage_power(struct sizes s)
{
    ptrdiff_t pixels = s.count * s.height * s.width, bits = 0;
    while (((ptrdiff_t)1 << bits) < pixels)
        bits++;
    return bits / STAGES > 4 ? bits / STAGES : 4;
}

/* The first stage is full after `done` numbers; so are others, now and then. */
static void pass_on(float *stages, ptrdiff_t length, ptrdiff_t done, ptrdiff_t power)
{
    for (int k = 1; k < STAGES; k++, stages += length) {
        for (ptrdiff_t c = 0; c < length; c++)
            stages[length + c] += stages[c], stages[c] = 0;
        if (done >> k * power & (((ptrdiff_t)1 << power) - 1))
            return;
    }
}

/* Adds all pixels of an image to the sums, after `done` pixels of other images. */
WIDE INLINE void add_bias_gradient(const float *padded, struct sizes s, ptrdiff_t done,
                                   float *stages)
{
    ptrdiff_t row = (s.width + 2) * s.outputs, power = stage_power(s), most = (ptrdiff_t)1 << power;
    for (ptrdiff_t y = 0; y < s.height; y++)
        for (ptrdiff_t x = 0, here; x < s.width; x += here, done += here) {
            ptrdiff_t until = most - done % most;
            here = until < s.width - x ? until : s.width - x;
            for (ptrdiff_t c = 0; c < s.outputs; c += BLOCK) {
                const float *at = padded + (y + 1) * row + (x + 1) * s.outputs + c;
                sixteen first = AT16(stages + c), second = AT16(stages + c + WIDTH);
                for (ptrdiff_t k = 0; k < here; k++, at += s.outputs)
                    first += AT16(at), second += AT16(at + WIDTH);
                PUT16(stages + c, first), PUT16(stages + c + WIDTH, second);
            }
            if (here == until)
                pass_on(stages, s.outputs, done + here, power);
        }
}

WIDE INLINE void all_forward(struct sizes s, const float *in, const float *packed, const float *bias,
                             float *out, int8_t *winner, float *padded)
{
    ptrdiff_t image = s.height * s.width * s.inputs, pooled = s.height * s.width / 4 * s.outputs;
    for (ptrdiff_t n = 0; n < s.count; n++) {
        into_middle(in + n * image, s, padded);
        pooled_image(padded, s, packed, bias, out + n * pooled, winner + n * pooled);
    }
}

WIDE INLINE void all_backward(struct sizes s, const float *in, const float *flipped,
                              const float *grad, const int8_t *winner, float *total, float *stages,
                              float *below, float *padded, float *padded_grad)
{
    ptrdiff_t image = s.height * s.width * s.inputs, pooled = s.height * s.width / 4 * s.outputs;
    struct sizes turned = {s.count, s.height, s.width, s.outputs, s.inputs};
    for (ptrdiff_t n = 0; n < s.count; n++) {
        into_middle(in + n * image, s, padded);
        unpool_image(grad + n * pooled, winner + n * pooled, s, padded_grad);
        add_bias_gradient(padded_grad, s, n * s.height * s.width, stages);
        if (s.inputs >= ROW_SUMS_FROM)
            add_weight_gradient(1, padded, padded_grad, s, total);
        else
            add_weight_gradient(0, padded, padded_grad, s, total);
        if (below)
            plain_image(padded_grad, turned, flipped, below + n * image);
    }
}

/* The loops are compiled for the channels of the paper's networks, and for any others. */
#define FOR_CHANNELS(s, call)                               \
    do {                                                    \
        if ((s).inputs == 3 && (s).outputs == 32) {         \
            (s).inputs = 3, (s).outputs = 32;               \
            call;                                           \
        } else if ((s).inputs == 32 && (s).outputs == 32) { \
            (s).inputs = 32, (s).outputs = 32;              \
            call;                                           \
        } else {                                            \
            call;                                           \
        }                                                   \
    } while (0)

/* out, winner: [count, height / 2, width / 2, outputs]. room: as many numbers as a padded image of
   inputs and the weight have. */
WIDE
void fedpbc_convolve(const float *in, ptrdiff_t count, ptrdiff_t height, ptrdiff_t width,
                     ptrdiff_t inputs, ptrdiff_t outputs, const float *weight, const float *bias,
                     float *out, int8_t *winner, float *room)
{
    struct sizes s = {count, height, width, inputs, outputs};
    float *packed = room + (height + 2) * (width + 2) * inputs;
    clear_border(room, height, width, inputs);
    pack(weight, s, packed);
    FOR_CHANNELS(s, all_forward(s, in, packed, bias, out, winner, room));
}

/* grad, winner: as out and winner above; weight_grad as weight, bias_grad as bias; below as in, or
   null. room: as many numbers as a padded image of inputs, one of outputs, twice the weight and four
   times the bias have. */
WIDE
void fedpbc_convolve_backward(const float *in, ptrdiff_t count, ptrdiff_t height, ptrdiff_t width,
                              ptrdiff_t inputs, ptrdiff_t outputs, const float *weight,
                              const float *grad, const int8_t *winner, float *weight_grad,
                              float *bias_grad, float *below, float *room)
{
    struct sizes s = {count, height, width, inputs, outputs};
    ptrdiff_t pixels = (height + 2) * (width + 2), taps = SIDE * SIDE * inputs;
    float *padded_grad = room + pixels * inputs, *flipped = padded_grad + pixels * outputs;
    float *total = flipped + taps * outputs, *stages = total + taps * outputs;
    clear_border(room, height, width, inputs);
    clear_border(padded_grad, height, width, outputs);
    memset(total, 0, (taps + STAGES) * outputs * sizeof(float));
    if (below)
        pack_flipped(weight, s, flipped);
    FOR_CHANNELS(s, all_backward(s, in, flipped, grad, winner, total, stages, below, room,
                                 padded_grad));
    for (ptrdiff_t o = 0; o < outputs; o++) {
        for (ptrdiff_t k = 0; k < taps; k++)
            weight_grad[o * taps + k] = total[k * outputs + o];
        bias_grad[o] = stages[o];
        for (int k = 1; k < STAGES; k++)
            bias_grad[o] += stages[k * outputs + o];
    }
}

#endif
