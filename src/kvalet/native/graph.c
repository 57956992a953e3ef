/* The kernels as nodes of a ggml graph. */
#include "kvalet.h"

static struct {
    int64_t data, ne, nb, src;
} layout;

void kvalet_set_tensor_layout(int64_t data, int64_t ne, int64_t nb, int64_t src) {
    layout.data = data;
    layout.ne = ne;
    layout.nb = nb;
    layout.src = src;
}

static float *data_of(const struct ggml_tensor *t) {
    return *(float *const *)((const char *)t + layout.data);
}

static const struct ggml_tensor *source(const struct ggml_tensor *t, int i) {
    return ((struct ggml_tensor *const *)((const char *)t + layout.src))[i];
}

static const float *input(const struct ggml_tensor *t, int i) {
    return source(t, i) ? data_of(source(t, i)) : NULL;
}

/* Floats from one token of [dim, heads, width] to the next. */
static int64_t token_stride(const struct ggml_tensor *t) {
    return ((const int64_t *)((const char *)t + layout.nb))[2] / (int64_t)sizeof(float);
}

static int width_of(const struct ggml_tensor *t) {
    return (int)((const int64_t *)((const char *)t + layout.ne))[1];
}

static int num_elements(const struct ggml_tensor *t) {
    const int64_t *ne = (const int64_t *)((const char *)t + layout.ne);
    return (int)(ne[0] * ne[1] * ne[2] * ne[3]);
}

void kvalet_write(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    kvalet_write_rows(userdata, input(dst, 0), token_stride(source(dst, 0)), input(dst, 1),
                      token_stride(source(dst, 1)), ith, nth);
}

void kvalet_attend(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const kvalet_attention *a = userdata;
    int width = num_elements(dst) / (a->num_heads * a->pool->head_dim);
    kvalet_attend_rows(a, input(dst, 0), data_of(dst), width, ith, nth);
}

void kvalet_fold(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    kvalet_fold_rows(userdata, data_of(dst), ith, nth);
}

void kvalet_quantise(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const kvalet_input *in = userdata;
    kvalet_quantise_rows(input(dst, 0), (uint8_t *)data_of(dst), in->num_in, width_of(dst), ith,
                         nth);
}

void kvalet_norm(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const kvalet_input *in = userdata;
    kvalet_norm_rows(input(dst, 0), in->weight, in->eps, (uint8_t *)data_of(dst), in->num_in,
                     width_of(dst), ith, nth);
}

void kvalet_swiglu(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const kvalet_input *in = userdata;
    kvalet_swiglu_rows(input(dst, 0), (uint8_t *)data_of(dst), in->num_in, width_of(dst), ith, nth);
}

void kvalet_linear_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const kvalet_layers *l = userdata;
    kvalet_linear_rows(l->layers, l->num_layers, (const uint8_t *)input(dst, 0), input(dst, 1),
                       data_of(dst), width_of(dst), ith, nth);
}
