/* shoal: gradient reduction by daemons on the CPUs.
 *
 * A training process opens a job, gets its rank, and runs collectives over groups of ranks. The
 * arithmetic and the network are in the daemon (shoald) of the node; this library moves the data
 * into and out of shared memory. All calls are thread-safe; on one group, all ranks must start the
 * same collectives in the same order.
 *
 * Every call returns SHOAL_OK or a negative SHOAL_E... code; shoal_error_text() of the calling
 * thread then names the culprit. NULL in place of a handle is SHOAL_EINVALID, except in calls that
 * close or free. No call waits for ever: where no timeout is given, the job's is
 * used.
 */
#ifndef SHOAL_H
#define SHOAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHOAL_API __attribute__((visibility("default")))
#else
#define SHOAL_API
#endif

#define SHOAL_VERSION_MAJOR 0
#define SHOAL_VERSION_MINOR 1
#define SHOAL_VERSION_PATCH 0

enum shoal_result {
    SHOAL_OK = 0,
    SHOAL_EINVALID = -1,      /* an argument that is not allowed */
    SHOAL_EMEMORY = -2,       /* out of memory, or a configured limit reached */
    SHOAL_ETIMEOUT = -3,      /* the time allowed has passed; the request goes on */
    SHOAL_EDISCONNECTED = -4, /* no daemon, or the daemon went away */
    SHOAL_ELOST = -5,         /* a rank, or the node that it is on, is gone */
    SHOAL_EMISMATCH = -6,     /* the ranks of a collective disagree on what it is */
    SHOAL_EPROTOCOL = -7,     /* the daemon speaks another version, or nonsense */
    SHOAL_EREFUSED = -8,      /* the daemon says no: draining, limits, a rank given twice */
    SHOAL_ESYSTEM = -9,       /* a call of the system, or of a device's driver, failed */
    SHOAL_ESTATE = -10,       /* not possible now: closed, or not yet */
    SHOAL_EUNSUPPORTED = -11, /* not in this build or on this machine */
    SHOAL_EAGAIN = -12,       /* not done yet (shoal_test) */
};

enum shoal_dtype {
    SHOAL_F32 = 0,
    SHOAL_F64 = 1,
    SHOAL_F16 = 2,
    SHOAL_BF16 = 3,
    SHOAL_I8 = 4,
    SHOAL_U8 = 5,
    SHOAL_I32 = 6,
    SHOAL_I64 = 7
};

enum shoal_op {
    SHOAL_SUM = 0,
    SHOAL_AVG = 1, /* sum divided by the ranks of the group; integers: wrapped sum, towards zero */
    SHOAL_PROD = 2,
    SHOAL_MIN = 3,
    SHOAL_MAX = 4,
    SHOAL_BAND = 5, /* bitwise: integer types only */
    SHOAL_BOR = 6,
    SHOAL_BXOR = 7
};

typedef struct shoal_job shoal_job;
typedef struct shoal_group shoal_group;
typedef struct shoal_request shoal_request;
typedef struct shoal_fusion shoal_fusion;

/* How to open a job. Zero the structure, set what is known; what is not set is read from the
 * environment variable named, then takes the default. */
struct shoal_options {
    size_t struct_size;      /* sizeof(struct shoal_options), for later versions */
    const char *job;         /* SHOAL_JOB, "default": the job's name: at most 63 bytes of UTF-8 */
    const char *socket_path; /* SHOAL_SOCKET, /run/shoal/shoald.sock: the daemon of this node */
    int rank_plus_1;         /* RANK: rank + 1, or 0 when unknown: the daemons then assign one */
    int local_rank_plus_1;   /* LOCAL_RANK: likewise */
    int world_size;          /* WORLD_SIZE: ranks of the job; must be known */
    int timeout_ms;          /* SHOAL_TIMEOUT_MS, 300000: of calls and waits without one */
    uint64_t arena_bytes; /* SHOAL_ARENA_BYTES, 256 MiB: shared memory for staging and shoal_alloc.
                           * Only what is touched takes memory. */
};

/* Join the job; returns when all its ranks have come. options may be NULL. On success *job is the
 * caller's (shoal_close). SHOAL_EINVALID, SHOAL_EDISCONNECTED, SHOAL_ETIMEOUT (names the missing
 * ranks), SHOAL_EREFUSED, SHOAL_EMEMORY, SHOAL_ESYSTEM. */
SHOAL_API int shoal_open(const struct shoal_options *options, shoal_job **job);
/* Leave the job and free everything of it: requests, groups, arena memory, fusion buffers. Requests
 * not yet complete fail with SHOAL_ESTATE first. Calls of other threads that are under way end
 * first, those that wait with SHOAL_ESTATE; no other may begin. NULL is allowed. */
SHOAL_API int shoal_close(shoal_job *job);

SHOAL_API int shoal_rank(const shoal_job *job);
SHOAL_API int shoal_world_size(const shoal_job *job);
SHOAL_API int shoal_local_rank(const shoal_job *job); /* position among the ranks of this node */
SHOAL_API int shoal_local_size(const shoal_job *job); /* ranks of this job on this node */
SHOAL_API int shoal_node_count(const shoal_job *job); /* nodes with ranks of this job */

/* The group of all ranks; belongs to the job. */
SHOAL_API shoal_group *shoal_world(shoal_job *job);
/* Open a group of `count` distinct ranks of the job, in this order; every member calls it with the
 * same list (only members). Returns when all have. timeout_ms -1: the job's. A call that failed may
 * be made again, by every member that failed. */
SHOAL_API int shoal_group_open(shoal_job *job, const int *ranks, int count, int timeout_ms,
                               shoal_group **group);
/* SHOAL_ESTATE while collectives of it are under way, and while it has fusion buffers;
 * SHOAL_EINVALID for the group of all ranks. */
SHOAL_API int shoal_group_close(shoal_group *group);
SHOAL_API int shoal_group_rank(const shoal_group *group); /* this process's position in the list */
SHOAL_API int shoal_group_size(const shoal_group *group);

/* Memory in the arena, aligned to 64 bytes: collectives on it need no copy. NULL when the arena is
 * full (error text has asked, free and arena size). shoal_free(job, NULL) is allowed. */
SHOAL_API void *shoal_alloc(shoal_job *job, size_t bytes);
SHOAL_API void shoal_free(shoal_job *job, void *memory);

/* Memory that all ranks of the group which are on one node share, for results: an all_reduce whose
 * recv lies in it has its result written there once, by the daemon, in place of once for each rank.
 * It can only be read here; other collectives with results in it are SHOAL_EINVALID. Every rank of
 * the group asks for the same pieces in the same order, with the same bytes; what has failed may be
 * asked for again by every rank that it failed for. It is aligned to a page, zero at first, and
 * belongs to the daemon, within its limits.memory_bytes, until it has heard from all ranks of the
 * node that they have freed it, or left.
 *
 * The ranks of a node give the same offset of it as recv (aligned to 64 bytes; ranks of another
 * node may give another, or memory of their own), else the group fails with SHOAL_EMISMATCH. send
 * may lie anywhere, also at the same address; what does not lie in the arena is copied. What is in
 * it stays until the next collective into it begins, which is not before every rank of the node has
 * started that one: a rank that still reads must not start it. After a failure it stays readable,
 * and holds any mixture of what was in it and results.
 *
 * NULL, and the text: SHOAL_EINVALID, SHOAL_EMEMORY, SHOAL_EMISMATCH (names both sizes),
 * SHOAL_EUNSUPPORTED (Linux before 5.1), or as the group has failed. */
SHOAL_API const void *shoal_shared_alloc(shoal_group *group, size_t bytes);
/* Give it back; it must not be read any more. SHOAL_ESTATE while a collective of this rank into it
 * is under way. NULL is allowed. Closing the group or the job does it too. */
SHOAL_API int shoal_shared_free(shoal_group *group, const void *memory);

/* Start a collective of `count` elements. send and recv may be the same address (in place); they
 * must stay untouched until the request is complete. *request is the caller's (shoal_wait with
 * success or failure other than SHOAL_ETIMEOUT frees it; else shoal_request_free). With
 * request NULL the call waits for completion, with the job's timeout; on SHOAL_ETIMEOUT the buffers
 * must then stay untouched until the job is closed.
 * root is a rank of the group. reduce: recv is used on the root alone (NULL elsewhere allowed).
 * broadcast: data is sent from the root's buffer into everybody's. */
SHOAL_API int shoal_all_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                               enum shoal_dtype dtype, enum shoal_op op, shoal_request **request);
SHOAL_API int shoal_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                           enum shoal_dtype dtype, enum shoal_op op, int root,
                           shoal_request **request);
SHOAL_API int shoal_broadcast(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype,
                              int root, shoal_request **request);
SHOAL_API int shoal_barrier(shoal_group *group, shoal_request **request);

/* Collectives in which every rank has a part of its own. In the first form all parts have `count`
 * elements and lie side by side in rank order; in the `_v` form each has a size of its own, which
 * may be 0, and lies anywhere: send[i] and recv[i] are the parts for and from rank i of the group.
 * The lists are read before the call returns. Buffers must not overlap, but a rank's own part may
 * be in place: for all_gather, send may be this rank's part of recv; for reduce_scatter, recv may
 * be this rank's part of send; likewise for gather and scatter on the root. Of lists on both sides
 * (all_to_all_v) overlaps are not looked for. Ranks that do not agree on the size of a part get
 * SHOAL_EMISMATCH; a rank that the part is not for may be complete before, and then gets it from
 * its next collective of the group.
 *
 * all_gather: everybody gets every rank's part. reduce_scatter: rank i gets the reduction of
 * everybody's part i. gather, scatter: to and from the root alone (recv, or send, is not looked at
 * elsewhere, nor its list and counts). all_to_all: rank i's part j goes to rank j. */
SHOAL_API int shoal_all_gather(shoal_group *group, const void *send, void *recv, size_t count,
                               enum shoal_dtype dtype, shoal_request **request);
SHOAL_API int shoal_all_gather_v(shoal_group *group, const void *send, void *const recv[],
                                 const size_t counts[], enum shoal_dtype dtype,
                                 shoal_request **request);
SHOAL_API int shoal_reduce_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                                   enum shoal_dtype dtype, enum shoal_op op,
                                   shoal_request **request);
SHOAL_API int shoal_reduce_scatter_v(shoal_group *group, const void *const send[], void *recv,
                                     const size_t counts[], enum shoal_dtype dtype,
                                     enum shoal_op op, shoal_request **request);
SHOAL_API int shoal_gather(shoal_group *group, const void *send, void *recv, size_t count,
                           enum shoal_dtype dtype, int root, shoal_request **request);
/* `count` elements are sent by this rank; counts[i] come from rank i. */
SHOAL_API int shoal_gather_v(shoal_group *group, const void *send, size_t count, void *const recv[],
                             const size_t counts[], enum shoal_dtype dtype, int root,
                             shoal_request **request);
SHOAL_API int shoal_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                            enum shoal_dtype dtype, int root, shoal_request **request);
SHOAL_API int shoal_scatter_v(shoal_group *group, const void *const send[], const size_t counts[],
                              void *recv, size_t count, enum shoal_dtype dtype, int root,
                              shoal_request **request);
SHOAL_API int shoal_all_to_all(shoal_group *group, const void *send, void *recv, size_t count,
                               enum shoal_dtype dtype, shoal_request **request);
SHOAL_API int shoal_all_to_all_v(shoal_group *group, const void *const send[],
                                 const size_t send_counts[], void *const recv[],
                                 const size_t recv_counts[], enum shoal_dtype dtype,
                                 shoal_request **request);

/* From one rank to another: `count` elements to `peer`, or from it, a rank of the group other than
 * this one, which makes the other of the two calls with the same count and type. Those with one tag
 * (0 to 2^31 - 1) arrive in the order in which they were sent; those with different tags, and
 * collectives, may be waited for in any order. Data that does not lie in the arena goes through
 * memory taken from it: SHOAL_EMEMORY when that has no room. Of a send, the buffer is then free as
 * soon as the call returns, unless it is a device's; the request is complete when the other side
 * has got it, so two ranks that both wait for a send first wait for ever. When the peer leaves the
 * job, or asks for another count or type, the group fails: SHOAL_ELOST, SHOAL_EMISMATCH. Of a
 * rank's sends 256 are under way at once, and of its receives as many; others follow in the order
 * of the calls. */
SHOAL_API int shoal_send(shoal_group *group, const void *data, size_t count, enum shoal_dtype dtype,
                         int peer, int tag, shoal_request **request);
SHOAL_API int shoal_recv(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype,
                         int peer, int tag, shoal_request **request);
/* From whichever rank sends something with the tag first: *source, unless it is NULL, is set to it
 * before the request is complete, and must be there until then: a stream that waits for the request
 * does not tell when. Of one rank's sends those that were
 * sent first come first, and so do, with one tag, the receives from any rank that were started
 * first; one that names the rank may overtake those. It looks for a sender by a message to every
 * node of the group. SHOAL_ELOST when all others have left the job. */
SHOAL_API int shoal_recv_any(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype,
                             int tag, int *source, shoal_request **request);

/* Progress among requests in flight: smaller priorities go first. For the next collectives that
 * this thread starts on the group; 0 at first. All ranks should use the same. */
SHOAL_API int shoal_group_set_priority(shoal_group *group, uint32_t priority);

/* SHOAL_OK when complete, SHOAL_EAGAIN when not, else the error. Does not free. */
SHOAL_API int shoal_test(shoal_request *request);
/* Wait for completion and free the request. timeout_ms -1: the job's; on SHOAL_ETIMEOUT the request
 * lives on and can be waited for again. */
SHOAL_API int shoal_wait(shoal_request *request, int timeout_ms);
/* Forget a request; its buffers must still stay untouched until it completes or the job closes. */
SHOAL_API void shoal_request_free(shoal_request *request);
/* Call `callback(argument, result)` once, from the library's thread or one that is in shoal_wait
 * (or at once, from this one, when already complete). It must not block, wait for requests or close
 * the job. It may run after a shoal_wait for the request has returned. One a request: SHOAL_ESTATE
 * for a second. */
SHOAL_API int shoal_request_on_complete(shoal_request *request,
                                        void (*callback)(void *argument, int result),
                                        void *argument);
/* A descriptor for event loops: readable while requests have completed since the last
 * shoal_completions_clear, which may be before their callbacks have been called. Belongs to the
 * job. */
SHOAL_API int shoal_completions_descriptor(shoal_job *job);
SHOAL_API int shoal_completions_clear(shoal_job *job);

/* --- memory of a GPU ------------------------------------------------------------------------
 *
 * A job can have one device. Collectives, sends and receives on its memory go in the order of the
 * framework's streams: one begins when its stream has come to where it was when the call was made,
 * and a stream can be made to wait for its end. Neither makes the host wait. Data goes through
 * pinned memory of the arena by the copy engines alone: nothing is run on the device. Where there
 * is no such device, shoal_device_open says so. */

struct shoal_device_options {
    size_t struct_size;
    int number;            /* as CUDA counts the devices of this process */
    const char *library;   /* SHOAL_CUDA_LIBRARY, libcuda.so.1: the driver's library */
    uint64_t pinned_bytes; /* SHOAL_PINNED_BYTES, the daemon's limits.pinned_bytes, which is also
                            * the most: how much of the arena to pin, beginning with the memory
                            * that copies go through */
};

/* Open the job's device, with its primary context. options may be NULL: device 0. It is closed with
 * the job; shoal_close waits a few seconds for streams to come past their waits for requests, and
 * not when the device has failed. What the device may use even then, the arena and the context,
 * stays until the process ends.
 * SHOAL_EUNSUPPORTED (no driver or too old a one, no device), SHOAL_EINVALID (not one of the
 * devices), SHOAL_ESTATE (the job has one), SHOAL_EMEMORY (the arena could not be pinned: the text
 * says how much was asked for, and what said so), SHOAL_ESYSTEM. */
SHOAL_API int shoal_device_open(shoal_job *job, const struct shoal_device_options *options);

enum shoal_memory { SHOAL_MEMORY_HOST = 0, SHOAL_MEMORY_DEVICE = 1 };

/* Of the next collectives, sends and receives that this thread starts on the group: where all their
 * buffers lie, and, on the device, which stream (CUstream, cudaStream_t; NULL: the default one)
 * they are in the order of. Host at first. A barrier is of the calls: it waits for no stream. On
 * the device 4096 of a job can be under way; another one is SHOAL_EMEMORY. SHOAL_ESTATE: the job
 * has no device. */
SHOAL_API int shoal_group_set_stream(shoal_group *group, enum shoal_memory memory, void *stream);

/* Make a stream of the device wait until the request is complete, failed or not; returns at once,
 * and does not free. What the stream does next finds the result. When the request is complete
 * already, its result is returned; else SHOAL_OK. SHOAL_EUNSUPPORTED: streams of this device cannot
 * wait for memory; use shoal_wait. SHOAL_EINVALID: the request is not on the device. */
SHOAL_API int shoal_request_wait_stream(shoal_request *request, void *stream);

/* For programs without a framework: memory of the device (NULL on failure), a stream, and copies
 * between such memory and the process's in the order of that stream, which are waited for; one that
 * fails with the device may go on. Memory must be freed before the job is closed. */
SHOAL_API void *shoal_device_alloc(shoal_job *job, size_t bytes);
SHOAL_API void shoal_device_free(shoal_job *job, void *memory);
SHOAL_API void *shoal_device_stream(shoal_job *job);
SHOAL_API int shoal_device_copy(shoal_job *job, void *to, const void *from, size_t bytes);

/* --- balanced fusion buffers ---------------------------------------------------------------
 *
 * Gradients are gathered until a threshold is passed and all-reduced as one, while the backward
 * pass goes on. Register the parameters once, in the order of the forward pass; say ready as each
 * gradient appears (any order, any thread); wait at the end of the step. The buffers are laid out
 * in the order in which gradients became ready in the first step, which rank 0 tells the others;
 * data types are never mixed in one buffer. The result is written back to the gradients. */

struct shoal_parameter {
    void *gradient; /* memory of the gradient; NULL: the library allocates it in the arena,
                     * inside its fusion buffer, so that nothing is copied
                     * (shoal_fusion_gradient gives the address) */
    size_t count;   /* elements */
    enum shoal_dtype dtype;
};

struct shoal_fusion_options {
    size_t struct_size;
    size_t threshold_bytes;    /* 0: 25 MiB, or data.chunk_bytes for each server if more */
    size_t first_buffer_bytes; /* 0: 1 MiB; the first buffer is sent early */
    enum shoal_op op;          /* SHOAL_SUM or SHOAL_AVG */
    int on_device;             /* gradients and fusion buffers are in memory of the job's device */
    void *device_memory;       /* for the buffers, of shoal_fusion_bytes; NULL: the library's */
};

/* On a device: gradients that the caller has are brought together, and results written back, on the
 * stream that shoal_fusion_set_stream names (the default one at first), and gradients are ready
 * when that stream has come to where it was when the last one of their buffer was said to be. The
 * stream may be changed between steps: the new one comes behind the results of the last. After
 * shoal_fusion_wait_stream the next step may begin at once. */

SHOAL_API int shoal_fusion_create(shoal_group *group, const struct shoal_parameter *parameters,
                                  size_t parameter_count,
                                  const struct shoal_fusion_options *options,
                                  shoal_fusion **fusion);
/* Waits for what is under way, with the job's timeout; what is not over then keeps its memory until
 * the job is closed, and gradients and device_memory of the caller's must stay as long. */
SHOAL_API void shoal_fusion_free(shoal_fusion *fusion);
/* The memory that the buffers of these parameters take, in any order; 0 when it is too much. */
SHOAL_API size_t shoal_fusion_bytes(const struct shoal_parameter *parameters,
                                    size_t parameter_count);
/* SHOAL_EINVALID: not on a device; SHOAL_ESTATE: in the middle of a step. */
SHOAL_API int shoal_fusion_set_stream(shoal_fusion *fusion, void *stream);
/* Where the gradient of a parameter lies now; it may move once, at the end of the first step, when
 * the library allocated it. NULL for an unknown index. */
SHOAL_API void *shoal_fusion_gradient(shoal_fusion *fusion, size_t index);
/* The gradient is complete; it must stay untouched until shoal_fusion_wait. */
SHOAL_API int shoal_fusion_ready(shoal_fusion *fusion, size_t index);
/* Reduce what is not yet under way (parameters without a gradient this step count as zero), wait
 * for all buffers. timeout_ms -1: the job's. */
SHOAL_API int shoal_fusion_wait(shoal_fusion *fusion, int timeout_ms);

/* On a device: the same without the host waiting; what `stream`, that of shoal_fusion_set_stream or
 * another, does next finds the results, and so does what the other does next. A failure shows in
 * the next call. The host does wait at the end of the first step, in which ranks agree on an order,
 * and where streams of the device cannot wait for memory. */
SHOAL_API int shoal_fusion_wait_stream(shoal_fusion *fusion, void *stream, int timeout_ms);

/* Of the last finished step, for measuring overlap; one that ends on a stream is finished when its
 * results are there. */
struct shoal_fusion_statistics {
    size_t struct_size;
    uint64_t buffers; /* fusion buffers sent */
    uint64_t bytes;
    uint64_t communication_ns; /* time during which at least one buffer was under way */
    uint64_t exposed_ns;       /* the part of it spent inside shoal_fusion_wait, or by the stream of
                                * shoal_fusion_wait_stream in waiting; as the host sees it */
};
SHOAL_API int shoal_fusion_statistics(const shoal_fusion *fusion,
                                      struct shoal_fusion_statistics *statistics);

/* --- words ---------------------------------------------------------------------------------- */

/* What went wrong in the last failed call of this thread; "" when none failed. Valid until the
 * thread's next call. */
SHOAL_API const char *shoal_error_text(void);
/* A constant name of a code: "rank lost". */
SHOAL_API const char *shoal_result_name(int result);
SHOAL_API const char *shoal_version(void); /* "0.1.0" */
SHOAL_API size_t shoal_dtype_bytes(enum shoal_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
