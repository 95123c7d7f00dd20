/* Local steps of SGD for dense networks with ReLU and cross-entropy, client after client.

   A client's model stays in the cache for all the steps of a round, and nothing but its own numbers
   is looked at: what comes out for one client cannot depend on the others. */

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

INLINE float sum(eight s)
{
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

/* A dot product, begun with `total`, from the k-th number on. Spelt out: whether a compiler rounds a
   product before it is added depends on the processor that it compiles for. */
INLINE float rest(float total, const float *x, const float *w, ptrdiff_t k, ptrdiff_t length)
{
    for (; k < length; k++)
        total = __builtin_fmaf(x[k], w[k], total);
    return total;
}

INLINE float dot(const float *x, const float *w, ptrdiff_t length)
{
    eight s = {0};
    ptrdiff_t k = 0;
    for (; k + LANES <= length; k += LANES)
        s += AT(x + k) * AT(w + k);
    return rest(sum(s), x, w, k, length);
}

/* Two samples with four rows of weights: eight sums at once keep the processor busy. */
INLINE void dots(const float *x, const float *y, const float *w, ptrdiff_t length,
                 const float *bias, float *out, float *under)
{
    const float *v = w + length, *u = v + length, *t = u + length;
    eight xw = {0}, xv = {0}, xu = {0}, xt = {0}, yw = {0}, yv = {0}, yu = {0}, yt = {0};
    ptrdiff_t k = 0;
    for (; k + LANES <= length; k += LANES) {
        eight a = AT(x + k), b = AT(y + k), c = AT(w + k), d = AT(v + k);
        xw += a * c, yw += b * c, xv += a * d, yv += b * d;
        c = AT(u + k), d = AT(t + k);
        xu += a * c, yu += b * c, xt += a * d, yt += b * d;
    }
    out[0] = rest(sum(xw), x, w, k, length) + bias[0];
    out[1] = rest(sum(xv), x, v, k, length) + bias[1];
    out[2] = rest(sum(xu), x, u, k, length) + bias[2];
    out[3] = rest(sum(xt), x, t, k, length) + bias[3];
    under[0] = rest(sum(yw), y, w, k, length) + bias[0];
    under[1] = rest(sum(yv), y, v, k, length) + bias[1];
    under[2] = rest(sum(yu), y, u, k, length) + bias[2];
    under[3] = rest(sum(yt), y, t, k, length) + bias[3];
}

#ifdef WIDE
/* Eight samples as packed_dots reads them: two side by side, eight numbers of each at a time. */
INLINE void pack(const float *const *x, ptrdiff_t length, float *packed)
{
    for (ptrdiff_t k = 0; k + LANES <= length; k += LANES)
        for (int m = 0; m < 8; m += 2, packed += 2 * LANES)
            PUT16(packed, BESIDE(AT(x[m] + k), AT(x[m + 1] + k)));
}

/* What sum() returns for both halves of each of eight vectors, at the places that PLACE names. */
WIDE INLINE sixteen sums(const sixteen *s)
{
    sixteen quarters[4], halves[2];
    for (int i = 0; i < 4; i++) {
        sixteen a = s[2 * i], b = s[2 * i + 1];
        quarters[i] = SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                      SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; i++)
        halves[i] = FIRSTS(quarters[2 * i], quarters[2 * i + 1]) +
                    SECONDS(quarters[2 * i], quarters[2 * i + 1]);
    return FIRSTS(halves[0], halves[1]) + SECONDS(halves[0], halves[1]);
}

/* Where sums() leaves that of sample m of four, in vectors of two samples, with row n of four. */
#define PLACE(m, n) (4 * ((m) % 2 + 2 * ((n) % 2)) + (n) / 2 + 2 * ((m) / 2))
#define PLACES(m) PLACE(m, 0), PLACE(m, 1), PLACE(m, 2), PLACE(m, 3)

/* Eight packed samples with four rows of weights: sixteen vectors of sums, of two samples each. */
WIDE static void packed_dots(const float *packed, const float *const *x, const float *w,
                             ptrdiff_t length, const float *bias, float *out, ptrdiff_t outputs)
{
    sixteen s[16];
    for (int i = 0; i < 16; i++)
        s[i] = (sixteen){0};
    ptrdiff_t k = 0;
    for (; k + LANES <= length; k += LANES, packed += 8 * LANES) {
        sixteen a = AT16(packed), b = AT16(packed + 2 * LANES);
        sixteen c = AT16(packed + 4 * LANES), d = AT16(packed + 6 * LANES);
        for (int n = 0; n < 4; n++) {
            sixteen v = TWICE(w + n * length + k);
            s[n] += a * v, s[4 + n] += b * v, s[8 + n] += c * v, s[12 + n] += d * v;
        }
    }
    for (int first = 0; first < 8; first += 4) {
        sixteen totals = sums(s + 2 * first);
        union { sixteen all; four of[4]; } rows = {
            SHUFFLE(totals, totals, PLACES(0), PLACES(1), PLACES(2), PLACES(3))};
        for (int m = 0; m < 4; m++) {
            for (int n = 0; n < 4 && k < length; n++)
                rows.of[m][n] = rest(rows.of[m][n], x[first + m], w + n * length, k, length);
            *(four *)(out + (first + m) * outputs) = rows.of[m] + *(const four *)bias;
        }
    }
}
#endif

/* What comes next, to be brought into the cache during the first layer's products: a batch of
   samples, and a part of the next client's model. */
struct ahead {
    const float *samples;
    const int64_t *index;
    ptrdiff_t batch, inputs;
    const float *model;
    ptrdiff_t length;
};

INLINE void bring(const float *numbers, ptrdiff_t from, ptrdiff_t end)
{
    enum { LINE = 64 / sizeof(float) };
    for (ptrdiff_t k = from; k < end; k += LINE)
        __builtin_prefetch(numbers + k, 0, 2);
}

/* The k-th of n parts of it. */
INLINE void bring_part(const struct ahead *a, ptrdiff_t k, ptrdiff_t n)
{
    for (ptrdiff_t m = a->batch * k / n; m < a->batch * (k + 1) / n; m++)
        bring(a->samples + a->index[m] * a->inputs, 0, a->inputs);
    bring(a->model, a->length * k / n, a->length * (k + 1) / n);
}

/* out[m][n] = x[m] . weight[n] + bias[n] */
INLINE void forward(int wide, const float *const *x, const float *weight, const float *bias,
                    float *out, ptrdiff_t batch, ptrdiff_t inputs, ptrdiff_t outputs, float *packed,
                    const struct ahead *next)
{
    ptrdiff_t paired = batch - batch % 2, by_four = outputs - outputs % 4, done = 0;
#ifdef WIDE
    ptrdiff_t call = 0, calls = batch / 8 * (by_four / 4);
    /* Few rows of weights are not worth the packing. */
    for (; wide && outputs >= 2 * LANES && done + 8 <= batch; done += 8) {
        pack(x + done, inputs, packed);
        for (ptrdiff_t n = 0; n < by_four; n += 4) {
            bring_part(next, call++, calls);
            packed_dots(packed, x + done, weight + n * inputs, inputs, bias + n,
                        out + done * outputs + n, outputs);
        }
    }
#endif
    for (ptrdiff_t n = 0; n < by_four; n += 4) {
        const float *rows = weight + n * inputs;
        for (ptrdiff_t m = done; m < paired; m += 2) {
            float *o = out + m * outputs + n;
            dots(x[m], x[m + 1], rows, inputs, bias + n, o, o + outputs);
        }
    }
    for (ptrdiff_t m = 0; m < batch; m++)
        for (ptrdiff_t n = m < paired ? by_four : 0; n < outputs; n++)
            out[m * outputs + n] = dot(x[m], weight + n * inputs, inputs) + bias[n];
}

/* Four rows of weights minus what all slopes and inputs say, at 16 columns from the k-th on. */
INLINE void descend_block(const float *const *x, ptrdiff_t k, const float *slope, float *w,
                          ptrdiff_t batch, ptrdiff_t inputs, ptrdiff_t outputs)
{
    float *v = w + inputs, *u = v + inputs, *t = u + inputs;
    eight w0 = AT(w + k), v0 = AT(v + k), u0 = AT(u + k), t0 = AT(t + k);
    k += LANES;
    eight w1 = AT(w + k), v1 = AT(v + k), u1 = AT(u + k), t1 = AT(t + k);
    for (ptrdiff_t m = 0; m < batch; m++) {
        const float *s = slope + m * outputs;
        eight low = AT(x[m] + k - LANES), high = AT(x[m] + k);
        w0 -= s[0] * low, w1 -= s[0] * high, v0 -= s[1] * low, v1 -= s[1] * high;
        u0 -= s[2] * low, u1 -= s[2] * high, t0 -= s[3] * low, t1 -= s[3] * high;
    }
    PUT(w + k, w1), PUT(v + k, v1), PUT(u + k, u1), PUT(t + k, t1);
    k -= LANES;
    PUT(w + k, w0), PUT(v + k, v0), PUT(u + k, u0), PUT(t + k, t0);
}

#ifdef WIDE
/* The same for eight rows, at `parts` times 16 columns. */
WIDE INLINE void wide_descend_block(int parts, const float *const *x, ptrdiff_t k,
                                    const float *slope, float *w, ptrdiff_t batch,
                                    ptrdiff_t inputs, ptrdiff_t outputs)
{
    sixteen rows[8][2];
    for (int n = 0; n < 8; n++)
        for (int p = 0; p < parts; p++)
            rows[n][p] = AT16(w + n * inputs + k + p * 2 * LANES);
    for (ptrdiff_t m = 0; m < batch; m++, slope += outputs) {
        sixteen a[2];
        for (int p = 0; p < parts; p++)
            a[p] = AT16(x[m] + k + p * 2 * LANES);
        for (int n = 0; n < 8; n++) {
            sixteen each = EACH(slope[n]);
            for (int p = 0; p < parts; p++)
                rows[n][p] -= each * a[p];
        }
    }
    for (int n = 0; n < 8; n++)
        for (int p = 0; p < parts; p++)
            PUT16(w + n * inputs + k + p * 2 * LANES, rows[n][p]);
}

/* Eight rows, all columns but what is left of 16. */
WIDE static void wide_descend(const float *const *x, const float *slope, float *w, ptrdiff_t batch,
                              ptrdiff_t inputs, ptrdiff_t outputs)
{
    ptrdiff_t k = 0;
    for (; k + 4 * LANES <= inputs; k += 4 * LANES)
        wide_descend_block(2, x, k, slope, w, batch, inputs, outputs);
    for (; k + 2 * LANES <= inputs; k += 2 * LANES)
        wide_descend_block(1, x, k, slope, w, batch, inputs, outputs);
}
#endif

/* weight[n] -= sum over m of slope[m][n] x[m], and the biases likewise. */
INLINE void descend(int wide, const float *const *x, const float *slope, float *weight, float *bias,
                    ptrdiff_t batch, ptrdiff_t inputs, ptrdiff_t outputs)
{
    ptrdiff_t by_four = outputs - outputs % 4, by_sixteen = inputs - inputs % (2 * LANES);
    ptrdiff_t done = 0;
#ifdef WIDE
    for (; wide && done + 8 <= outputs; done += 8)
        wide_descend(x, slope + done, weight + done * inputs, batch, inputs, outputs);
#endif
    for (ptrdiff_t n = done; n < by_four; n += 4) {
        for (ptrdiff_t k = 0; k < by_sixteen; k += 2 * LANES)
            descend_block(x, k, slope + n, weight + n * inputs, batch, inputs, outputs);
    }
    for (ptrdiff_t n = 0; n < outputs; n++) {
        float *w = weight + n * inputs;
        ptrdiff_t from = n < by_four ? by_sixteen : 0;
        for (ptrdiff_t m = 0; m < batch; m++) {
            float s = slope[m * outputs + n];
            for (ptrdiff_t k = from; k < inputs; k++)
                w[k] -= s * x[m][k];
        }
    }
    ptrdiff_t n = 0;
    for (; n + LANES <= outputs; n += LANES) {
        eight total = {0};
        for (ptrdiff_t m = 0; m < batch; m++)
            total += AT(slope + m * outputs + n);
        PUT(bias + n, AT(bias + n) - total);
    }
    for (; n < outputs; n++) {
        float total = 0;
        for (ptrdiff_t m = 0; m < batch; m++)
            total += slope[m * outputs + n];
        bias[n] -= total;
    }
}

/* below[m] = sum over n of slope[m][n] weight[n], where the value below was above zero. */
INLINE void backward(const float *slope, const float *weight, const float *value, float *below,
                     ptrdiff_t batch, ptrdiff_t inputs, ptrdiff_t outputs)
{
    enum { PARTS = 4 };
    ptrdiff_t blocks = inputs - inputs % (PARTS * LANES);
    for (ptrdiff_t m = 0; m < batch; m++, slope += outputs, value += inputs, below += inputs) {
        for (ptrdiff_t k = 0; k < blocks; k += PARTS * LANES) {
            eight sums[PARTS] = {{0}};
            for (ptrdiff_t n = 0; n < outputs; n++)
                for (int p = 0; p < PARTS; p++)
                    sums[p] += slope[n] * AT(weight + n * inputs + k + p * LANES);
            for (int p = 0; p < PARTS; p++)
                PUT(below + k + p * LANES, sums[p]);
        }
        for (ptrdiff_t k = blocks; k < inputs; k++) {
            below[k] = 0;
            for (ptrdiff_t n = 0; n < outputs; n++)
                below[k] = __builtin_fmaf(slope[n], weight[n * inputs + k], below[k]);
        }
        for (ptrdiff_t k = 0; k < inputs; k++)
            below[k] = value[k] <= 0 ? 0 : below[k];
    }
}

/* From outputs to rate / batch times the gradient of the cross-entropy by them. */
INLINE void to_slope(float *outputs, ptrdiff_t classes, int64_t label, float scale)
{
    float largest = outputs[0], total = 0;
    for (ptrdiff_t n = 1; n < classes; n++)
        largest = outputs[n] > largest ? outputs[n] : largest;
    for (ptrdiff_t n = 0; n < classes; n++) {
        outputs[n] = expf(outputs[n] - largest);
        total += outputs[n];
    }
    for (ptrdiff_t n = 0; n < classes; n++)
        outputs[n] = scale * (outputs[n] / total - (n == label ? 1.0f : 0.0f));
}

/* Whether no number is infinite or NaN: their exponents have all bits set. */
INLINE int all_finite(const float *numbers, ptrdiff_t length)
{
    enum { EXPONENT = 0x7f800000 };
    int found = 0;
    for (ptrdiff_t k = 0; k < length; k++) {
        union { float number; int32_t bits; } each = {numbers[k]};
        found |= (each.bits & EXPONENT) == EXPONENT;
    }
    return !found;
}

/* `steps` steps for each of `clients` models of `dimension` numbers: weights and biases in turn.

   sizes: layers + 1 widths. samples, labels: of everybody. index: clients x steps x batch of them.
   finite: whether each model is, afterwards. room: batch times (all widths but the first, and twice
   the largest of those), and eight times the largest width. pointers: one per sample. wide: whether
   registers hold sixteen numbers. */
INLINE void all_steps(int wide, float *models, ptrdiff_t clients, ptrdiff_t dimension,
                      const int64_t *sizes, ptrdiff_t layers, const float *samples,
                      const int64_t *labels, const int64_t *index, ptrdiff_t steps,
                      ptrdiff_t batch, const float *rates, uint8_t *finite, float *room,
                      const float **pointers)
{
    ptrdiff_t widest = 0, all = 0;
    for (ptrdiff_t l = 1; l <= layers; l++) {
        widest = sizes[l] > widest ? sizes[l] : widest;
        all += sizes[l];
    }
    float *slopes[2] = {room + batch * all, room + batch * (all + widest)};
    float *packed = room + batch * (all + 2 * widest);
    for (ptrdiff_t client = 0; client < clients; client++) {
        float *model = models + client * dimension;
        for (ptrdiff_t step = 0; step < steps; step++) {
            const int64_t *own = index + (client * steps + step) * batch;
            int is_last = client + 1 == clients && step + 1 == steps;
            ptrdiff_t part_of_model = client + 1 < clients ? dimension / steps + 1 : 0;
            struct ahead next = {samples, own + batch, is_last ? 0 : batch, sizes[0],
                                 model + dimension + step * part_of_model, part_of_model};
            /* Forward: what comes out of each layer stands one after another in the room. */
            float *part = model, *value = room;
            for (ptrdiff_t m = 0; m < batch; m++)
                pointers[m] = samples + own[m] * sizes[0];
            for (ptrdiff_t l = 0; l < layers; l++) {
                ptrdiff_t inputs = sizes[l], outputs = sizes[l + 1];
                forward(wide, pointers, part, part + inputs * outputs, value, batch, inputs, outputs,
                        packed, &next);
                next.batch = next.length = 0;
                if (l + 1 < layers)
                    for (ptrdiff_t k = 0; k < batch * outputs; k++)
                        value[k] = value[k] <= 0 ? 0 : value[k];
                for (ptrdiff_t m = 0; m < batch; m++)
                    pointers[m] = value + m * outputs;
                part += (inputs + 1) * outputs;
                value += batch * outputs;
            }
            /* Backward: everything is linear in the slope, so the rate is in it from the start. */
            ptrdiff_t classes = sizes[layers];
            float *slope = value - batch * classes;
            for (ptrdiff_t m = 0; m < batch; m++)
                to_slope(slope + m * classes, classes, labels[own[m]], rates[client] / batch);
            value = slope;
            for (ptrdiff_t l = layers - 1; l >= 0; l--) {
                ptrdiff_t inputs = sizes[l], outputs = sizes[l + 1];
                part -= (inputs + 1) * outputs;
                value -= l > 0 ? batch * inputs : 0;
                float *below = slopes[l % 2];
                if (l > 0)
                    backward(slope, part, value, below, batch, inputs, outputs);
                for (ptrdiff_t m = 0; m < batch; m++)
                    pointers[m] = l > 0 ? value + m * inputs : samples + own[m] * sizes[0];
                descend(wide, pointers, slope, part, part + inputs * outputs, batch, inputs, outputs);
                slope = below;
            }
        }
        /* Now, since the model is still in the cache. */
        finite[client] = all_finite(model, dimension);
    }
}

#define PARAMETERS                                                                               \
    float *models, ptrdiff_t clients, ptrdiff_t dimension, const int64_t *sizes,                 \
        ptrdiff_t layers, const float *samples, const int64_t *labels, const int64_t *index,     \
        ptrdiff_t steps, ptrdiff_t batch, const float *rates, uint8_t *finite, float *room,      \
        const float **pointers
#define ARGUMENTS                                                                                \
    models, clients, dimension, sizes, layers, samples, labels, index, steps, batch, rates,      \
        finite, room, pointers

FASTEST
static void narrow_steps(PARAMETERS)
{
    all_steps(0, ARGUMENTS);
}

#ifdef WIDE
WIDE
static void wide_steps(PARAMETERS)
{
    all_steps(1, ARGUMENTS);
}
#endif

static void widest_steps(PARAMETERS)
{
#ifdef WIDE
    if (IS_WIDE) {
        wide_steps(ARGUMENTS);
        return;
    }
#endif
    narrow_steps(ARGUMENTS);
}

/* A thread's share of the clients. */
struct share {
    void (*work)(PARAMETERS);
    float *models;
    ptrdiff_t clients, dimension;
    const int64_t *sizes;
    ptrdiff_t layers;
    const float *samples;
    const int64_t *labels, *index;
    ptrdiff_t steps, batch;
    const float *rates;
    uint8_t *finite;
    float *room;
    const float **pointers;
    pthread_t thread;
    int started;
};

static void *run_share(void *given)
{
    struct share *s = given;
    s->work(s->models, s->clients, s->dimension, s->sizes, s->layers, s->samples, s->labels,
            s->index, s->steps, s->batch, s->rates, s->finite, s->room, s->pointers);
    return NULL;
}

/* The clients' steps in `threads` threads, this one among them, each with `room_size` numbers of the
   room and `batch` pointers. New threads cost a tenth of what Python's take to hand over to each
   other; a share that gets none is done here. Python handles no signal before all have ended. */
static void in_threads(void (*work)(PARAMETERS), PARAMETERS, ptrdiff_t threads, ptrdiff_t room_size)
{
    struct share shares[threads];
    for (ptrdiff_t k = threads - 1; k >= 0; k--) {
        ptrdiff_t first = clients * k / threads, end = clients * (k + 1) / threads;
        shares[k] = (struct share){
            work,
            models + first * dimension,
            end - first,
            dimension,
            sizes,
            layers,
            samples,
            labels,
            index + first * steps * batch,
            steps,
            batch,
            rates + first,
            finite + first,
            room + k * room_size,
            pointers + k * batch,
        };
        struct share *share = shares + k;
        share->started = k > 0 && !pthread_create(&share->thread, NULL, run_share, share);
        if (!share->started)
            run_share(share);
    }
    for (ptrdiff_t k = 1; k < threads; k++)
        if (shares[k].started)
            pthread_join(shares[k].thread, NULL);
}

void fedpbc_dense_steps(PARAMETERS, ptrdiff_t threads, ptrdiff_t room_size)
{
    in_threads(widest_steps, ARGUMENTS, threads, room_size);
}

/* As on a processor whose registers hold eight numbers: what comes out must be the same. */
void fedpbc_narrow_dense_steps(PARAMETERS, ptrdiff_t threads, ptrdiff_t room_size)
{
    in_threads(narrow_steps, ARGUMENTS, threads, room_size);
}
