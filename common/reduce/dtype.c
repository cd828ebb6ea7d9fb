#include "common/reduce/dtype.h"

#include "common/base/error.h"

#include <string.h>

enum { NAME_ALIASES = 3 };

struct dtype_row {
    size_t bytes;
    bool integer;
    const char *names[NAME_ALIASES]; /* nccl-tests' word first, then others that are understood */
};

static const struct dtype_row dtype_rows[DTYPE_COUNT] = {
    [DTYPE_F32] = {4, false, {"float", "float32", "f32"}},
    [DTYPE_F64] = {8, false, {"double", "float64", "f64"}},
    [DTYPE_F16] = {2, false, {"half", "float16", "f16"}},
    [DTYPE_BF16] = {2, false, {"bfloat16", "bf16", NULL}},
    [DTYPE_I8] = {1, true, {"int8", "i8", NULL}},
    [DTYPE_U8] = {1, true, {"uint8", "u8", NULL}},
    [DTYPE_I32] = {4, true, {"int32", "i32", NULL}},
    [DTYPE_I64] = {8, true, {"int64", "i64", NULL}},
    [DTYPE_I16] = {2, true, {"int16", "i16", NULL}},
    [DTYPE_U16] = {2, true, {"uint16", "u16", NULL}},
    [DTYPE_U32] = {4, true, {"uint32", "u32", NULL}},
    [DTYPE_U64] = {8, true, {"uint64", "u64", NULL}},
};

static const char *const op_names[REDUCE_OP_COUNT] = {
    [REDUCE_SUM] = "sum",   [REDUCE_AVG] = "avg",   [REDUCE_PROD] = "prod", [REDUCE_MIN] = "min",
    [REDUCE_MAX] = "max",   [REDUCE_BAND] = "band", [REDUCE_BOR] = "bor",   [REDUCE_BXOR] = "bxor",
    [REDUCE_LAND] = "land", [REDUCE_LOR] = "lor",   [REDUCE_LXOR] = "lxor",
};

static const char *const collective_names[COLLECTIVE_KIND_COUNT] = {
    [COLLECTIVE_ALL_REDUCE] = "all_reduce", [COLLECTIVE_REDUCE] = "reduce",
    [COLLECTIVE_BROADCAST] = "broadcast",   [COLLECTIVE_BARRIER] = "barrier",
    [COLLECTIVE_ALL_GATHER] = "all_gather", [COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
    [COLLECTIVE_GATHER] = "gather",         [COLLECTIVE_SCATTER] = "scatter",
    [COLLECTIVE_ALL_TO_ALL] = "all_to_all", [COLLECTIVE_SEND] = "send",
};

/* Index of text in names, or -1. */
static int name_find(const char *const *names, unsigned count, const char *text)
{
    for (unsigned i = 0; text && i < count; i++)
        if (names[i] && strcmp(names[i], text) == 0)
            return (int)i;
    return -1;
}

size_t dtype_bytes(unsigned dtype)
{
    return dtype < DTYPE_COUNT ? dtype_rows[dtype].bytes : 0;
}

bool dtype_is_integer(unsigned dtype)
{
    return dtype < DTYPE_COUNT && dtype_rows[dtype].integer;
}

const char *dtype_name(unsigned dtype)
{
    return dtype < DTYPE_COUNT ? dtype_rows[dtype].names[0] : "?";
}

int dtype_parse(const char *text, enum dtype *dtype)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (name_find(dtype_rows[i].names, NAME_ALIASES, text) >= 0) {
            *dtype = (enum dtype)i;
            return 0;
        }
    }
    return ERR_INVALID;
}

const char *reduce_op_name(unsigned op)
{
    return op < REDUCE_OP_COUNT ? op_names[op] : "?";
}

int reduce_op_parse(const char *text, enum reduce_op *op)
{
    int found = name_find(op_names, REDUCE_OP_COUNT, text);
    if (found < 0)
        return ERR_INVALID;
    *op = (enum reduce_op)found;
    return 0;
}

bool reduce_op_allows(unsigned op, unsigned dtype)
{
    if (op >= REDUCE_OP_COUNT || dtype >= DTYPE_COUNT)
        return false;
    return op < REDUCE_BAND || dtype_is_integer(dtype);
}

bool reduce_op_changes_one(enum reduce_op op, uint32_t divisor)
{
    return op >= REDUCE_LAND || (op == REDUCE_AVG && divisor > 1);
}

const char *collective_name(unsigned kind)
{
    return kind < COLLECTIVE_KIND_COUNT ? collective_names[kind] : "?";
}

int collective_parse(const char *text, enum collective_kind *kind)
{
    int found = name_find(collective_names, COLLECTIVE_KIND_COUNT, text);
    if (found < 0)
        return ERR_INVALID;
    *kind = (enum collective_kind)found;
    return 0;
}

bool collective_has_op(unsigned kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE ||
           kind == COLLECTIVE_REDUCE_SCATTER;
}

bool collective_has_root(unsigned kind)
{
    return kind == COLLECTIVE_REDUCE || kind == COLLECTIVE_BROADCAST || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_SCATTER;
}

bool collective_in_shards(unsigned kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE ||
           kind == COLLECTIVE_BROADCAST;
}
