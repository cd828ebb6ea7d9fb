/* Every instruction set against the reference, bit for bit: dtypes, ops, input counts, lengths,
 * offsets and places of the outputs. The edges of the float formats are in test_reduce_float.c. */
#include "common/reduce/reduce.h"

#include "common/base/error.h"
#include "tests/lib/reduce_into.h"
#include "tests/lib/reduce_reference.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

enum { ISA_COUNT = REDUCE_ISA_AVX512 + 1, GUARD_BYTES = 64, GUARD = 0xa5, MOST_INPUTS = 17 };

/* Arrays of their own allocation, each `offset` elements past an aligned address, guarded. */
struct array {
    unsigned char *memory, *data;
    size_t bytes;
};

static struct array array_create(size_t bytes, size_t offset_bytes)
{
    struct array array = {.bytes = bytes};
    size_t all = 2 * GUARD_BYTES + offset_bytes + bytes;
    array.memory = aligned_alloc(64, (all + 63) / 64 * 64);
    ck_assert_ptr_nonnull(array.memory);
    memset(array.memory, GUARD, (all + 63) / 64 * 64);
    array.data = array.memory + GUARD_BYTES + offset_bytes;
    return array;
}

static void array_check_guards(const struct array *array)
{
    for (unsigned char *p = array->memory; p < array->data; p++)
        if (*p != GUARD)
            ck_abort_msg("written %td bytes before the array", array->data - p);
    for (unsigned i = 0; i < GUARD_BYTES; i++)
        if (array->data[array->bytes + i] != GUARD)
            ck_abort_msg("written %u bytes after the array", i);
}

/* The inputs' original bytes, the expected result, and the arrays that reduce_run gets. */
struct fixture {
    enum dtype dtype;
    enum reduce_op op;
    unsigned inputs;
    size_t count, bytes;
    uint32_t divisor;
    struct array in[MOST_INPUTS], extra[2];
    unsigned char *original[MOST_INPUTS], *expected;
};

static void fixture_setup(struct fixture *f, enum dtype dtype, enum reduce_op op, unsigned inputs,
                          size_t count, size_t offset)
{
    size_t size = dtype_bytes(dtype);
    *f = (struct fixture){.dtype = dtype, .op = op, .inputs = inputs, .count = count};
    f->bytes = count * size;
    f->divisor = inputs + (unsigned)offset; /* the inputs may be sums of several ranks */
    for (unsigned i = 0; i < inputs; i++) {
        f->in[i] = array_create(f->bytes, (offset * (i + 1)) % 9 * size);
        f->original[i] = malloc(f->bytes + 1);
        ck_assert_ptr_nonnull(f->original[i]);
        unsigned special = count % 2 ? 32 : 2;
        reference_fill(dtype, f->original[i], count, 1000 * count + 10 * i + offset, special);
    }
    for (unsigned i = 0; i < 2; i++)
        f->extra[i] = array_create(f->bytes, (offset + i) % 5 * size);
    f->expected = malloc(f->bytes + 1);
    ck_assert_ptr_nonnull(f->expected);
    reference_reduce(dtype, op, (const void *const *)f->original, inputs, f->expected, count,
                     f->divisor);
}

static void fixture_teardown(struct fixture *f)
{
    for (unsigned i = 0; i < f->inputs; i++) {
        free(f->in[i].memory);
        free(f->original[i]);
    }
    free(f->extra[0].memory);
    free(f->extra[1].memory);
    free(f->expected);
}

static void check_result(const struct fixture *f, const struct array *array, const char *isa)
{
    size_t size = dtype_bytes(f->dtype);
    for (size_t at = 0; at < f->bytes; at += size)
        if (memcmp(array->data + at, f->expected + at, size) != 0)
            ck_abort_msg("%s %s %s: %u inputs, element %zu of %zu differs", isa,
                         dtype_name(f->dtype), reduce_op_name(f->op), f->inputs, at / size,
                         f->count);
    array_check_guards(array);
}

/* Run with outputs in the given places: 0..inputs-1 means that input, beyond it an extra array.
 * Afterwards outputs hold the result, and inputs that are no output are as they were. */
static void fixture_run_past(struct fixture *f, enum reduce_isa isa, const unsigned *places,
                             unsigned outputs, unsigned past_cache)
{
    const void *in[MOST_INPUTS];
    void *out[MOST_INPUTS + 2];
    bool is_output[MOST_INPUTS + 2] = {false};
    for (unsigned i = 0; i < f->inputs; i++) {
        if (f->bytes > 0)
            memcpy(f->in[i].data, f->original[i], f->bytes);
        in[i] = f->in[i].data;
    }
    for (unsigned i = 0; i < 2; i++)
        memset(f->extra[i].data, 0x5a, f->bytes);
    for (unsigned i = 0; i < outputs; i++) {
        unsigned place = places[i];
        out[i] = place < f->inputs ? f->in[place].data : f->extra[place - f->inputs].data;
        is_output[place] = true;
    }
    struct reduction reduction = {.dtype = f->dtype,
                                  .op = f->op,
                                  .divisor = f->divisor,
                                  .inputs = f->inputs,
                                  .outputs = outputs,
                                  .past_cache = past_cache,
                                  .count = f->count,
                                  .in = in,
                                  .out = out};
    reduce_run(reduce_select(isa), &reduction);
    for (unsigned i = 0; i < f->inputs; i++) {
        if (is_output[i])
            check_result(f, &f->in[i], reduce_isa_name(isa));
        else
            ck_assert(f->bytes == 0 || memcmp(f->in[i].data, f->original[i], f->bytes) == 0);
        array_check_guards(&f->in[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        if (is_output[f->inputs + i])
            check_result(f, &f->extra[i], reduce_isa_name(isa));
}

/* With none, the first and all of the outputs stored past the cache. */
static void fixture_run(struct fixture *f, enum reduce_isa isa, const unsigned *places,
                        unsigned outputs)
{
    fixture_run_past(f, isa, places, outputs, 0);
    if (outputs > 0)
        fixture_run_past(f, isa, places, outputs, 1);
    if (outputs > 1)
        fixture_run_past(f, isa, places, outputs, outputs);
}

static void check_places(struct fixture *f, enum reduce_isa isa)
{
    if (!reduce_isa_supported(isa))
        return;
    const unsigned n = f->inputs;
    unsigned all[MOST_INPUTS];
    for (unsigned i = 0; i < n; i++)
        all[i] = n - 1 - i;
    fixture_run(f, isa, NULL, 0);
    fixture_run(f, isa, (const unsigned[]){n}, 1);
    fixture_run(f, isa, (const unsigned[]){n / 2}, 1);
    fixture_run(f, isa, (const unsigned[]){n + 1, n - 1, n}, 3);
    fixture_run(f, isa, (const unsigned[]){0, n + 1}, 2);
    fixture_run(f, isa, all, n);
}

/* Whether to go on; if not, says so once per instruction set. */
static bool isa_usable(enum reduce_isa isa, bool say, const char *test)
{
    if (reduce_isa_supported(isa))
        return true;
    if (say)
        suite_skip(test, "%s is not supported by the processor", reduce_isa_name(isa));
    return false;
}

static void check_case(enum dtype dtype, unsigned op, unsigned inputs, size_t count, size_t offset)
{
    struct fixture f;
    fixture_setup(&f, dtype, (enum reduce_op)op, inputs, count, offset);
    for (unsigned isa = 0; isa < ISA_COUNT; isa++)
        check_places(&f, (enum reduce_isa)isa);
    fixture_teardown(&f);
}

/* _i is the dtype. */
START_TEST(test_against_reference)
{
    static const unsigned widths[] = {1, 2, 3, 4, 8, 9, 17};
    static const size_t counts[] = {0, 1, 3, 7, 31, 64, 1000, 4097, 4103};
    for (unsigned isa = 0; isa < ISA_COUNT; isa++)
        isa_usable((enum reduce_isa)isa, _i == 0, "test_against_reference");
    for (unsigned op = 0; op < REDUCE_OP_COUNT; op++)
        for (unsigned w = 0; reduce_op_allows(op, (unsigned)_i) && w < 7; w++)
            for (unsigned c = 0; c < 9; c++)
                check_case((enum dtype)_i, op, widths[w], counts[c], (w + c) % 4);
}
END_TEST

/* A length of the inputs at every offset of a vector, so that no code relies on an alignment. */
START_TEST(test_offsets)
{
    for (unsigned isa = 0; isa < ISA_COUNT; isa++)
        isa_usable((enum reduce_isa)isa, _i == 0, "test_offsets");
    for (unsigned op = 0; op < REDUCE_OP_COUNT; op++)
        for (size_t offset = 0; reduce_op_allows(op, (unsigned)_i) && offset < 9; offset++)
            check_case((enum dtype)_i, op, 3, 300 + offset, offset);
}
END_TEST

/* The order of the inputs decides a float sum: a big number first swallows the small ones. */
START_TEST(test_order)
{
    if (!isa_usable((enum reduce_isa)_i, true, "test_order"))
        return;
    enum { COUNT = 100 };
    float big[COUNT], small[COUNT], minus[COUNT], result[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        big[i] = 0x1p24f;
        small[i] = 1;
        minus[i] = -0x1p24f;
    }
    const struct reduce_kernels *kernels = reduce_select((enum reduce_isa)_i);
    const void *late[] = {big, small, small, minus}, *early[] = {small, small, big, minus};
    reduce_into(kernels, DTYPE_F32, REDUCE_SUM, late, 4, result, COUNT, 1);
    for (unsigned i = 0; i < COUNT; i++)
        ck_assert(result[i] == 0);
    reduce_into(kernels, DTYPE_F32, REDUCE_SUM, early, 4, result, COUNT, 1);
    for (unsigned i = 0; i < COUNT; i++)
        ck_assert(result[i] == 2);
}
END_TEST

/* The most inputs, which are one array many times, in place. */
START_TEST(test_most_inputs)
{
    if (!isa_usable((enum reduce_isa)_i, true, "test_most_inputs"))
        return;
    enum { COUNT = 77 };
    int32_t values[COUNT];
    const void *in[REDUCE_MAX_INPUTS];
    for (int i = 0; i < COUNT; i++)
        values[i] = i - 40;
    for (unsigned i = 0; i < REDUCE_MAX_INPUTS; i++)
        in[i] = values;
    const struct reduce_kernels *kernels = reduce_select((enum reduce_isa)_i);
    reduce_into(kernels, DTYPE_I32, REDUCE_SUM, in, REDUCE_MAX_INPUTS, values, COUNT, 1);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(values[i], REDUCE_MAX_INPUTS * (i - 40));
    reduce_into(kernels, DTYPE_I32, REDUCE_AVG, in, REDUCE_MAX_INPUTS, values, COUNT,
                REDUCE_MAX_INPUTS * REDUCE_MAX_INPUTS);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(values[i], i - 40);
}
END_TEST

struct integer_case {
    enum dtype dtype;
    enum reduce_op op;
    uint32_t divisor;
    int64_t a, b, expected;
};

/* Worked by hand: wrapping, signs, and division of the wrapped sum towards zero. */
static const struct integer_case integer_cases[] = {
    {DTYPE_I8, REDUCE_SUM, 1, 127, 1, -128},
    {DTYPE_I8, REDUCE_AVG, 2, 127, 1, -64},
    {DTYPE_I8, REDUCE_AVG, 2, -3, -4, -3},
    {DTYPE_I8, REDUCE_AVG, 200, -100, -28, 0},
    {DTYPE_I8, REDUCE_PROD, 1, -128, -1, -128},
    {DTYPE_I8, REDUCE_PROD, 1, 20, 20, -112},
    {DTYPE_I8, REDUCE_MIN, 1, -1, 1, -1},
    {DTYPE_U8, REDUCE_SUM, 1, 200, 100, 44},
    {DTYPE_U8, REDUCE_AVG, 2, 200, 100, 22},
    {DTYPE_U8, REDUCE_AVG, 300, 127, 128, 0},
    {DTYPE_U8, REDUCE_PROD, 1, 17, 16, 16},
    {DTYPE_U8, REDUCE_MIN, 1, 255, 1, 1},
    {DTYPE_U8, REDUCE_MAX, 1, 255, 1, 255},
    {DTYPE_I32, REDUCE_SUM, 1, INT32_MAX, 1, INT32_MIN},
    {DTYPE_I32, REDUCE_AVG, 2, -3, -4, -3},
    {DTYPE_I32, REDUCE_AVG, UINT32_MAX, INT32_MIN, 0, 0},
    {DTYPE_I32, REDUCE_PROD, 1, 65536, 65536, 0},
    {DTYPE_I32, REDUCE_MAX, 1, -5, -6, -5},
    {DTYPE_I64, REDUCE_SUM, 1, INT64_MAX, 1, INT64_MIN},
    {DTYPE_I64, REDUCE_AVG, 2, INT64_MAX, 1, INT64_MIN / 2},
    {DTYPE_I64, REDUCE_AVG, 1u << 31, INT64_MIN, 0, -(1ll << 32)},
    {DTYPE_I64, REDUCE_PROD, 1, 0x100000001, 0x100000001, 0x200000001},
    {DTYPE_I64, REDUCE_PROD, 1, -3, 5000000000, -15000000000},
    {DTYPE_I64, REDUCE_MIN, 1, 1ll << 40, -(1ll << 40), -(1ll << 40)},
    {DTYPE_I64, REDUCE_MAX, 1, 1ll << 40, 1ll << 41, 1ll << 41},
    {DTYPE_I64, REDUCE_BAND, 1, 0xff00ff00ff, 0x0ff00ff00f, 0x0f000f000f},
    {DTYPE_I32, REDUCE_BOR, 1, 0x0f0f, 0x00ff, 0x0fff},
    {DTYPE_U8, REDUCE_BXOR, 1, 0xf0, 0x3c, 0xcc},
    {DTYPE_I16, REDUCE_SUM, 1, INT16_MAX, 1, INT16_MIN},
    {DTYPE_I16, REDUCE_AVG, 2, -3, -4, -3},
    {DTYPE_I16, REDUCE_AVG, 2, INT16_MAX, 1, INT16_MIN / 2},
    {DTYPE_I16, REDUCE_PROD, 1, 300, 300, 24464},
    {DTYPE_I16, REDUCE_MIN, 1, -1, 1, -1},
    {DTYPE_I16, REDUCE_MAX, 1, -1, 1, 1},
    {DTYPE_U16, REDUCE_SUM, 1, 60000, 10000, 4464},
    {DTYPE_U16, REDUCE_AVG, 3, 60000, 10000, 1488},
    {DTYPE_U16, REDUCE_PROD, 1, 65535, 65535, 1},
    {DTYPE_U16, REDUCE_MIN, 1, 65535, 1, 1},
    {DTYPE_U16, REDUCE_MAX, 1, 65535, 1, 65535},
    {DTYPE_U32, REDUCE_SUM, 1, UINT32_MAX, 2, 1},
    {DTYPE_U32, REDUCE_AVG, 2, 3000000000, 1000000000, 2000000000},
    {DTYPE_U32, REDUCE_PROD, 1, 4000000000, 3, 3410065408},
    {DTYPE_U32, REDUCE_MIN, 1, 4000000000, 3, 3},
    {DTYPE_U32, REDUCE_MAX, 1, 4000000000, 3, 4000000000},
    {DTYPE_U64, REDUCE_SUM, 1, -1, 2, 1},
    {DTYPE_U64, REDUCE_AVG, 2, -2, 0, INT64_MAX},
    {DTYPE_U64, REDUCE_AVG, UINT32_MAX, -1, 0, 0x100000001},
    {DTYPE_U64, REDUCE_PROD, 1, -1, -1, 1},
    {DTYPE_U64, REDUCE_MIN, 1, -1, 1, 1},
    {DTYPE_U64, REDUCE_MIN, 1, INT64_MIN, INT64_MAX, INT64_MAX},
    {DTYPE_U64, REDUCE_MAX, 1, -1, 1, -1},
    {DTYPE_I8, REDUCE_LAND, 1, -128, 1, 1},
    {DTYPE_I16, REDUCE_LAND, 1, 256, 0, 0},
    {DTYPE_U64, REDUCE_LAND, 1, 1ll << 40, 1ll << 41, 1},
    {DTYPE_I32, REDUCE_LOR, 1, 0, INT32_MIN, 1},
    {DTYPE_U16, REDUCE_LOR, 1, 0, 0, 0},
    {DTYPE_I64, REDUCE_LXOR, 1, 1ll << 40, 2, 0},
    {DTYPE_U32, REDUCE_LXOR, 1, 0, 256, 1},
};

START_TEST(test_integers_by_hand)
{
    if (!isa_usable((enum reduce_isa)_i, true, "test_integers_by_hand"))
        return;
    enum { COUNT = 71 };
    for (size_t k = 0; k < sizeof(integer_cases) / sizeof(integer_cases[0]); k++) {
        const struct integer_case *row = &integer_cases[k];
        unsigned char a[COUNT * 8], b[COUNT * 8], result[COUNT * 8];
        size_t size = dtype_bytes(row->dtype);
        for (size_t i = 0; i < COUNT; i++) {
            memcpy(a + i * size, &row->a, size);
            memcpy(b + i * size, &row->b, size);
        }
        const void *in[] = {a, b};
        reduce_into(reduce_select((enum reduce_isa)_i), row->dtype, row->op, in, 2, result, COUNT,
                    row->divisor);
        for (size_t i = 0; i < COUNT; i++)
            ck_assert_msg(memcmp(result + i * size, &row->expected, size) == 0,
                          "row %zu, element %zu", k, i);
    }
}
END_TEST

/* The truth of one input alone is 1 or 0, as of many. */
START_TEST(test_truth_of_one_input)
{
    enum { COUNT = 71 };
    if (!isa_usable((enum reduce_isa)_i, true, "test_truth_of_one_input"))
        return;
    uint16_t values[COUNT], result[COUNT];
    const void *in[] = {values};
    for (unsigned i = 0; i < COUNT; i++)
        values[i] = (uint16_t)(i % 3 << 8);
    for (unsigned op = REDUCE_LAND; op <= REDUCE_LXOR; op++) {
        reduce_into(reduce_select((enum reduce_isa)_i), DTYPE_U16, (enum reduce_op)op, in, 1,
                    result, COUNT, 1);
        for (unsigned i = 0; i < COUNT; i++)
            ck_assert_uint_eq(result[i], i % 3 != 0);
    }
}
END_TEST

START_TEST(test_isa_names)
{
    static const char *const names[ISA_COUNT] = {"scalar", "avx2", "avx512"};
    enum reduce_isa isa;
    for (unsigned i = 0; i < ISA_COUNT; i++) {
        ck_assert_str_eq(reduce_isa_name((enum reduce_isa)i), names[i]);
        ck_assert_int_eq(reduce_isa_parse(names[i], &isa), 0);
        ck_assert_uint_eq(isa, i);
    }
    ck_assert_str_eq(reduce_isa_name((enum reduce_isa)99), "?");
    isa = REDUCE_ISA_AVX2;
    ck_assert_int_eq(reduce_isa_parse("sse", &isa), ERR_INVALID);
    ck_assert_int_eq(reduce_isa_parse("", &isa), ERR_INVALID);
    ck_assert_int_eq(reduce_isa_parse(NULL, &isa), ERR_INVALID);
    ck_assert_int_eq(isa, REDUCE_ISA_AVX2);
}
END_TEST

START_TEST(test_isa_select)
{
    enum reduce_isa best = reduce_isa_best();
    ck_assert(reduce_isa_supported(REDUCE_ISA_SCALAR));
    ck_assert(reduce_isa_supported(best));
    ck_assert(!reduce_isa_supported((enum reduce_isa)99));
    ck_assert_ptr_null(reduce_select((enum reduce_isa)99));
    for (unsigned i = 0; i < ISA_COUNT; i++) {
        const struct reduce_kernels *kernels = reduce_select((enum reduce_isa)i);
        ck_assert_int_eq(kernels != NULL, reduce_isa_supported((enum reduce_isa)i));
        if (i > best)
            ck_assert_ptr_null(kernels);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reduce");
    TCase *tests = tcase_create("reduce");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_against_reference, 0, DTYPE_COUNT);
    tcase_add_loop_test(tests, test_offsets, 0, DTYPE_COUNT);
    tcase_add_loop_test(tests, test_order, 0, ISA_COUNT);
    tcase_add_loop_test(tests, test_most_inputs, 0, ISA_COUNT);
    tcase_add_loop_test(tests, test_integers_by_hand, 0, ISA_COUNT);
    tcase_add_loop_test(tests, test_truth_of_one_input, 0, ISA_COUNT);
    tcase_add_test(tests, test_isa_names);
    tcase_add_test(tests, test_isa_select);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
