#include "worker/mpi/types.h"

#include "worker/mpi/process.h"

/* Each type has a name, an element type of libshoal's, and so many elements of that. */
#define TYPES(TYPE)                                                                                \
    TYPE(BYTE, SHOAL_U8, 1)                                                                        \
    TYPE(INT8_T, SHOAL_I8, 1)                                                                      \
    TYPE(UINT8_T, SHOAL_U8, 1)                                                                     \
    TYPE(INT16_T, SHOAL_I16, 1)                                                                    \
    TYPE(UINT16_T, SHOAL_U16, 1)                                                                   \
    TYPE(INT32_T, SHOAL_I32, 1)                                                                    \
    TYPE(UINT32_T, SHOAL_U32, 1)                                                                   \
    TYPE(INT64_T, SHOAL_I64, 1)                                                                    \
    TYPE(UINT64_T, SHOAL_U64, 1)                                                                   \
    TYPE(FLOAT, SHOAL_F32, 1)                                                                      \
    TYPE(DOUBLE, SHOAL_F64, 1)                                                                     \
    TYPE(C_COMPLEX, SHOAL_F32, 2)                                                                  \
    TYPE(C_DOUBLE_COMPLEX, SHOAL_F64, 2)
/* Each operation has a name, and is one of libshoal's. */
#define OPS(OP)                                                                                    \
    OP(SUM, SHOAL_SUM)                                                                             \
    OP(PROD, SHOAL_PROD)                                                                           \
    OP(MIN, SHOAL_MIN)                                                                             \
    OP(MAX, SHOAL_MAX)

/* A handle is the place in the table, from 1. */
#define TYPE_PLACE(name, dtype, pieces) TYPE_##name,
#define OP_PLACE(name, op) OP_##name,
enum { TYPE_NONE, TYPES(TYPE_PLACE) TYPE_END };
enum { OP_NONE, OPS(OP_PLACE) OP_END };

#define TYPE_HANDLE(name, dtype, pieces)                                                           \
    extern const MPIABI_Datatype MPIABI_##name;                                                    \
    const MPIABI_Datatype MPIABI_##name = TYPE_##name;
#define OP_HANDLE(name, op)                                                                        \
    extern const MPIABI_Op MPIABI_##name;                                                          \
    const MPIABI_Op MPIABI_##name = OP_##name;
TYPES(TYPE_HANDLE)
OPS(OP_HANDLE)

#define TYPE_ENTRY(name, dtype, pieces) [TYPE_##name] = {dtype, pieces},
#define OP_ENTRY(name, op) [OP_##name] = (op),
static const struct mpi_type types[] = {TYPES(TYPE_ENTRY)};
static const enum shoal_op ops[] = {OPS(OP_ENTRY)};

int type_find(MPIABI_Datatype handle, struct mpi_type *type)
{
    if (handle == TYPE_NONE || handle >= TYPE_END)
        return MPI_ERROR_TYPE;
    *type = types[handle];
    return MPI_ERROR_NONE;
}

int op_find(MPIABI_Op handle, struct mpi_type type, enum shoal_op *op)
{
    if (handle == OP_NONE || handle >= OP_END)
        return MPI_ERROR_OP;
    *op = ops[handle];
    bool ordered = *op == SHOAL_MIN || *op == SHOAL_MAX;
    return ordered && type.pieces > 1 ? MPI_ERROR_OP : MPI_ERROR_NONE;
}

size_t type_bytes(struct mpi_type type, size_t count)
{
    return count * type.pieces * shoal_dtype_bytes(type.dtype);
}
