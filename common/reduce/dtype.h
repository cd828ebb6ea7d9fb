/* Element types, reduction operations and collectives: their numbers (which travel on the wire
 * and in the arena), names and sizes. Calls nothing. */
#ifndef COMMON_REDUCE_DTYPE_H
#define COMMON_REDUCE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F64 = 1,
    DTYPE_F16 = 2,
    DTYPE_BF16 = 3,
    DTYPE_I8 = 4,
    DTYPE_U8 = 5,
    DTYPE_I32 = 6,
    DTYPE_I64 = 7,
    DTYPE_I16 = 8,
    DTYPE_U16 = 9,
    DTYPE_U32 = 10,
    DTYPE_U64 = 11,
    DTYPE_COUNT
};

enum reduce_op {
    REDUCE_SUM = 0,
    REDUCE_AVG = 1, /* the sum divided by the number of ranks, before the last rounding */
    REDUCE_PROD = 2,
    REDUCE_MIN = 3,
    REDUCE_MAX = 4,
    REDUCE_BAND = 5, /* bitwise: integers only */
    REDUCE_BOR = 6,
    REDUCE_BXOR = 7,
    REDUCE_LAND = 8, /* logical: what is not 0 is true, and the result is 1 or 0; integers only */
    REDUCE_LOR = 9,
    REDUCE_LXOR = 10,
    REDUCE_OP_COUNT
};

enum collective_kind {
    COLLECTIVE_ALL_REDUCE = 0,
    COLLECTIVE_REDUCE = 1,
    COLLECTIVE_BROADCAST = 2,
    COLLECTIVE_BARRIER = 3,
    /* The kinds from here on travel in blocks: common/format/route.h. */
    COLLECTIVE_ALL_GATHER = 4,
    COLLECTIVE_REDUCE_SCATTER = 5,
    COLLECTIVE_GATHER = 6,
    COLLECTIVE_SCATTER = 7,
    COLLECTIVE_ALL_TO_ALL = 8,
    COLLECTIVE_SEND = 9, /* from one rank to another; the others know nothing of it */
    COLLECTIVE_KIND_COUNT
};

/* Bytes of one element; 0 for a number that is no dtype. */
size_t dtype_bytes(unsigned dtype);
bool dtype_is_integer(unsigned dtype);

/* nccl-tests' words: "float", "double", "half", "bfloat16", "int8", "uint8", "int32", "int64",
 * "uint32", "uint64", and "int16", "uint16"; "?" for a number that is no dtype. dtype_parse also
 * takes float32, float64, float16, f32, ...
 * Parsers return 0 or ERR_INVALID. */
const char *dtype_name(unsigned dtype);
int dtype_parse(const char *text, enum dtype *dtype);

/* "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor", "lxor". */
const char *reduce_op_name(unsigned op);
int reduce_op_parse(const char *text, enum reduce_op *op);
/* Whether op is defined for dtype (bitwise and logical ones are for integers). False for unknown
 * numbers. */
bool reduce_op_allows(unsigned op, unsigned dtype);
/* Whether the result of one input alone may differ from it: a quotient, or a truth. */
bool reduce_op_changes_one(enum reduce_op op, uint32_t divisor);

/* "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "reduce_scatter", "gather",
 * "scatter", "all_to_all", "send". */
const char *collective_name(unsigned kind);
int collective_parse(const char *text, enum collective_kind *kind);
/* Whether the kind has a reduction, or a root. False for unknown numbers. */
bool collective_has_op(unsigned kind);
bool collective_has_root(unsigned kind);
/* Whether it is cut into shards over the servers: all_reduce, reduce, broadcast. */
bool collective_in_shards(unsigned kind);

#endif
