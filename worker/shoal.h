/* shoal: gradient reduction by daemons on the CPUs.
 *
 * A training process opens a job, gets its rank, and runs collectives over groups of ranks. The
 * arithmetic and the network are in the daemon of the node (shoald). This library moves the data
 * into and out of the arena, memory that it shares with the daemon. The manual page shoal(3) has an
 * example.
 *
 * Results. A function that returns int returns SHOAL_OK or a negative SHOAL_E... code; where it
 * returns a number, that number or a negative code. A function that returns a pointer returns NULL
 * when it fails. shoal_error_text() of the same thread then says why, and names the culprit.
 *
 * Errors that a comment does not repeat. Any function may return SHOAL_EINVALID for an argument,
 * NULL in place of a handle included, SHOAL_EMEMORY when the process has no memory left, and
 * SHOAL_ESTATE when the job is being closed, or was opened by a process that has forked this one:
 * that one has of the job's memory a copy of what shoal_alloc gave, which is taken page by page
 * when it first writes there, and must not touch other memory of it. A collective, send or receive
 * ends with whatever its group or job has failed with: SHOAL_ELOST, SHOAL_EMISMATCH,
 * SHOAL_EDISCONNECTED, SHOAL_EREFUSED, SHOAL_EPROTOCOL, SHOAL_EMEMORY.
 *
 * Threads. Any function may be called by any thread at any time. One that closes or frees a handle
 * is the last call on it, and does nothing with NULL. Settings of a group and the error text belong
 * to the calling thread.
 *
 * Order. On one group, all ranks must start the same collectives in the same order.
 *
 * Time. timeout_ms is in milliseconds, and -1 stands for the job's timeout. No call waits for ever:
 * one without timeout_ms waits for the job's timeout at most. */
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

/* Results of calls that return an int. shoal(3) says of each code what to do. */
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
    SHOAL_ESTATE = -10,       /* not possible now: closed, under way, or not yet */
    SHOAL_EUNSUPPORTED = -11, /* not in this build or on this machine */
    SHOAL_EAGAIN = -12,       /* not done yet (shoal_test) */
};

/* Types of elements, in the processor's byte order. */
enum shoal_dtype {
    SHOAL_F32 = 0,
    SHOAL_F64 = 1,
    SHOAL_F16 = 2,  /* IEEE binary16 */
    SHOAL_BF16 = 3, /* the upper half of an f32 */
    SHOAL_I8 = 4,
    SHOAL_U8 = 5,
    SHOAL_I32 = 6,
    SHOAL_I64 = 7,
    SHOAL_I16 = 8,
    SHOAL_U16 = 9,
    SHOAL_U32 = 10,
    SHOAL_U64 = 11
};

/* Reductions, element by element, in an order that is fixed for the ranks and their nodes. Complex
 * numbers are summed and averaged as pairs: twice the count of SHOAL_F32 or SHOAL_F64. */
enum shoal_op {
    SHOAL_SUM = 0, /* of integers: wrapped */
    SHOAL_AVG = 1, /* the sum divided by the ranks of the group; integers: towards zero */
    SHOAL_PROD = 2,
    SHOAL_MIN = 3,
    SHOAL_MAX = 4,
    SHOAL_BAND = 5, /* bitwise: integer types only, as all that follow */
    SHOAL_BOR = 6,
    SHOAL_BXOR = 7,
    SHOAL_LAND = 8, /* logical: what is not 0 is true; 1 or 0, of one rank alone too */
    SHOAL_LOR = 9,
    SHOAL_LXOR = 10 /* true where an odd number of ranks have given what is true */
};

typedef struct shoal_job shoal_job;         /* this process's part in a job */
typedef struct shoal_group shoal_group;     /* ranks of a job that run collectives together */
typedef struct shoal_request shoal_request; /* one collective, send or receive */
typedef struct shoal_fusion shoal_fusion;   /* gradients that are reduced in shared buffers */

/* --- jobs ------------------------------------------------------------------------------------ */

/* How to open a job. Zero the structure and set what is known. A field that is zero is read from
 * the environment variable named first in its comment; without that it has the default named next.
 * Where the world size is not known by that, it, the ranks and the job's name are those of srun, of
 * Open MPI's mpirun or of a launcher that speaks PMI; without any of them, and without a rank, the
 * process is rank 0 of 1, in a job with a name of its own. A daemon must answer: the error of a
 * process that such a launcher has started without one is the line that starts both. Texts are read
 * before shoal_open returns. */
struct shoal_options {
    size_t struct_size;      /* sizeof(struct shoal_options), for later versions */
    const char *job;         /* SHOAL_JOB, "default": the job's name, at most 63 bytes of UTF-8 */
    const char *socket_path; /* SHOAL_SOCKET, /run/shoal/shoald.sock: the daemon of this node */
    int rank_plus_1;         /* RANK, none: the rank plus 1; when unknown the daemons assign one */
    int local_rank_plus_1;   /* LOCAL_RANK, none: the rank among those of this node, plus 1 */
    int world_size;       /* WORLD_SIZE: ranks of the job, 1 to 32768; without it, the launcher's */
    int timeout_ms;       /* SHOAL_TIMEOUT_MS, 300000: the job's timeout */
    uint64_t arena_bytes; /* SHOAL_ARENA_BYTES, 256 MiB: size of the arena. Only what is touched of
                           * it takes memory. */
    int newcomer;         /* not 0: become a rank of a job that runs, in its next generation
                           * (shoal_job_reconfigure); the world size is what it has then, and so
                           * is the rank, unless rank_plus_1 gives one that there is and no other
                           * newcomer has asked for: the old ranks are then numbered around it */
    int recovery;         /* where a connection between two daemons breaks while both live, a server
                           * without ranks is lost, or a daemon is started again: 1, the job goes
                           * on, and what its results overwrite is kept in memory until all have
                           * them (SHOAL_EUNSUPPORTED where the daemons are not configured for it);
                           * -1, it fails; 0, as they are configured. All ranks give the same; a
                           * newcomer has what the job has */
};

/* Join a job; returns when all its ranks have come, or, as a newcomer, when the next generation has
 * begun. options may be NULL. *job is the caller's until shoal_close. SHOAL_EINVALID,
 * SHOAL_EDISCONNECTED (no daemon), SHOAL_ETIMEOUT (names the missing ranks), SHOAL_ELOST (a
 * newcomer: a rank was lost meanwhile), SHOAL_EREFUSED, SHOAL_EPROTOCOL, SHOAL_EMEMORY,
 * SHOAL_ESYSTEM. */
SHOAL_API int shoal_open(const struct shoal_options *options, shoal_job **job);
/* Leave the job and free all that is the job's: requests, groups, shared memory, fusion buffers.
 * Memory of shoal_alloc stays, with what is in it, until it is given back. A request that is not
 * complete fails with SHOAL_ESTATE first. Calls of other threads that are under way end first,
 * those that wait with SHOAL_ESTATE; no other may begin. It waits for the daemon's answer for 5
 * seconds at most. */
SHOAL_API int shoal_close(shoal_job *job);
/* Say why this process is about to end: `why` is UTF-8, and read before this returns. The other
 * ranks find it in the error of what they wait for, behind "rank 3 on node b is gone: ".
 * shoal_close then takes no leave. A process that ends by exit() with a job open, within 10 seconds
 * of a call that failed, says that call's text by itself. SHOAL_EINVAL, SHOAL_ESTATE. */
SHOAL_API int shoal_set_ending(shoal_job *job, const char *why);

/* How to go on. Zero the structure and set what is to differ from the default. */
struct shoal_reconfigure_options {
    size_t struct_size; /* sizeof(struct shoal_reconfigure_options), for later versions */
    int timeout_ms;     /* 0: the job's timeout; for the generation to come about, and for each of
                         * the three agreements around that */
    int stragglers_ms;  /* 0: 10000; for so long, from the first call on, the others wait for a rank
                         * that lives and does not call: then they go on without it */
    uint64_t *collectives; /* NULL, or where it says how many collectives of the group of all ranks,
                            * counted from the first since the job began or this returned SHOAL_OK,
                            * have a result on every rank that is left. Some ranks may have the
                            * result of a later one: none is to use it */
    int least_ranks; /* 0: go on with those that are left and the newcomers that wait by then. 1 to
                      * 32768: when all that are left have called, wait until newcomers make them so
                      * many. The last of these ends the wait; a rank that is lost meanwhile counts
                      * no more. If the ranks that have called wish for different things, the
                      * greatest number and the longest time count. After that time they go on with
                      * fewer, which is no error: shoal_world_size says with how many */
    int wait_ms;     /* for least_ranks: how long, from when all that are left have called;
                      * timeout_ms at most. 0: as long as timeout_ms allows. The wait ends 2 seconds
                      * before the timeout_ms of any of them is over, whoever wished to wait */
};

/* The ranks that are left, and newcomers that wait by then, become the next generation of the job.
 * To be called by each rank when a call has failed with SHOAL_ELOST, or SHOAL_EREFUSED because a
 * node shuts down, or, in a job with recovery, SHOAL_EDISCONNECTED because the daemon of the node
 * has ended: then this waits until it is started again. All requests are over then. Each rank may
 * call it without a loss, too, to take newcomers in: its requests must be over. Groups but that of
 * all ranks, and shared memory, must have been closed or freed. It returns when all have called it
 * that are left, and after what least_ranks wishes for. Ranks are numbered anew, the old ones first
 * and in their old order; shoal_world stays what it was, with the new ranks; memory of shoal_alloc
 * stays, and so does what is in it: a buffer that was to be reduced in place may have results in
 * some parts. Fusion buffers stay, and begin anew as with their first step: they give up a step
 * that has begun, and gradients that the library allocated move. No other thread uses the job
 * meanwhile. options may be NULL.
 *
 * SHOAL_ESTATE: the job has failed otherwise, or its daemon is gone, and recovery is not on.
 * SHOAL_ELOST: another rank was lost meanwhile; it may be called again. SHOAL_ETIMEOUT (names the
 * ranks that have not called), SHOAL_EREFUSED (the others have gone on), SHOAL_EDISCONNECTED,
 * SHOAL_EPROTOCOL: nothing is left but to close the job. SHOAL_EUNSUPPORTED: a job with a device.
 */
SHOAL_API int shoal_job_reconfigure(shoal_job *job,
                                    const struct shoal_reconfigure_options *options);
/* 1, and more after each shoal_job_reconfigure, and when the job has gone on by itself. */
SHOAL_API int shoal_generation(const shoal_job *job);

/* Set *number to the number that the next collective of the group of all ranks has, of all since
 * the job began: a program writes it into a checkpoint. Collectives are not counted that have
 * failed and that shoal_job_reconfigure says nobody is to use, nor the library's own. The number is
 * the same on all ranks that have started the same collectives. */
SHOAL_API int shoal_position(shoal_job *job, uint64_t *number);

/* This process's rank in the job, from 0. */
SHOAL_API int shoal_rank(const shoal_job *job);
/* The number of ranks of the job. */
SHOAL_API int shoal_world_size(const shoal_job *job);
/* This process's position among the job's ranks on this node, from 0. */
SHOAL_API int shoal_local_rank(const shoal_job *job);
/* The number of the job's ranks on this node. */
SHOAL_API int shoal_local_size(const shoal_job *job);
/* The number of nodes that have ranks of the job. */
SHOAL_API int shoal_node_count(const shoal_job *job);

/* --- groups ---------------------------------------------------------------------------------- */

/* The group of all ranks. It is the job's, and closed with it. */
SHOAL_API shoal_group *shoal_world(shoal_job *job);
/* Open a group of `count` distinct ranks of the job, in the order of the list, which is read before
 * this returns. Every member calls it with the same list, and nobody else; it returns when all
 * members have. *group is the caller's until shoal_group_close or shoal_close. A call that failed
 * may be made again, by every member that failed. How many groups a process is in is a matter of
 * memory: each takes data.chunk_bytes of its arena, 256 KiB by default, so that an arena of 256 MiB
 * has room for about 900; and memory of the daemons (limits.groups_per_job, 4096 by default).
 * SHOAL_ETIMEOUT, SHOAL_EMEMORY (limits of the daemon included), SHOAL_EREFUSED, or what the job
 * has failed with. */
SHOAL_API int shoal_group_open(shoal_job *job, const int *ranks, int count, int timeout_ms,
                               shoal_group **group);
/* Close a group. SHOAL_ESTATE while collectives of it are under way, and while it has fusion
 * buffers; SHOAL_EINVALID for the group of all ranks. */
SHOAL_API int shoal_group_close(shoal_group *group);
/* This process's position in the group's list, from 0: its rank in the group. */
SHOAL_API int shoal_group_rank(const shoal_group *group);
/* The number of ranks of the group. */
SHOAL_API int shoal_group_size(const shoal_group *group);
/* Set the priority of the collectives that this thread starts on the group from now on; 0 at first.
 * Requests that the daemon has go in the order of their numbers, the smaller first; collectives
 * that the ranks of a node do without the daemon go in the order of the calls. All ranks should use
 * the same. */
SHOAL_API int shoal_group_set_priority(shoal_group *group, uint32_t priority);
/* Set the identity of the tensor that is in the all-reduces, reduces and broadcasts that this
 * thread starts on the group from now on: a number from 1 to 2^31 - 1 that stays the same from step
 * to step, or 0, as at first: none. Each server always has the same part of tensors with one
 * identity, one count and one type; small tensors without an identity go to the servers in turn.
 * Ranks that give different ones disagree: SHOAL_EMISMATCH. Fusion buffers have identities of their
 * own. */
SHOAL_API int shoal_group_set_identity(shoal_group *group, uint32_t identity);

/* --- memory ---------------------------------------------------------------------------------- */

/* Return `bytes` of memory in the arena, aligned to 64 bytes; collectives on it need no copy. The
 * memory is the caller's until shoal_free, also after shoal_close, when it is ordinary memory of
 * the process; the arena is unmapped with the last of the job and of such memory. NULL when the
 * arena is full: the text has what was asked for, what is free, and the arena's size. */
SHOAL_API void *shoal_alloc(shoal_job *job, size_t bytes);
/* Give memory of shoal_alloc back. Nothing that is under way may use it. This is the one call that
 * takes a job which has been closed, for memory that has not been given back yet. */
SHOAL_API void shoal_free(shoal_job *job, void *memory);

/* Return `bytes` of memory that all ranks of the group which are on one node share, for the results
 * of shoal_all_reduce: the daemon writes a result there once, not once for each rank. The memory
 * can only be read here, is aligned to a page, and zero at first. Every rank of the group asks for
 * the same pieces in the same order, with the same bytes; a piece whose call has failed may be
 * asked for again by every rank whose call failed. The memory belongs to the daemon, within its
 * limits.memory_bytes, until it has heard from all ranks of the node that they have freed it, or
 * left.
 *
 * The ranks of a node give the same offset in it as recv, aligned to 64 bytes, else the group fails
 * with SHOAL_EMISMATCH; ranks of another node may give another offset, or memory of their own. send
 * may lie anywhere, also at the same address; what does not lie in the arena is copied. A result
 * stays until the next collective into the memory begins, which is not before every rank of the
 * node has started that one: a rank that still reads must not start it. After a failure the memory
 * stays readable, and holds any mixture of what was in it and results. A result of any other
 * collective cannot lie there: SHOAL_EINVALID.
 *
 * NULL, and the text: SHOAL_EINVALID, SHOAL_EMEMORY, SHOAL_EMISMATCH (names both sizes),
 * SHOAL_EUNSUPPORTED (Linux before 5.1), SHOAL_ETIMEOUT, or what the group has failed with. */
SHOAL_API const void *shoal_shared_alloc(shoal_group *group, size_t bytes);
/* Give memory of shoal_shared_alloc back; it must not be read any more. Closing the group or the
 * job does so too. SHOAL_ESTATE while a collective of this rank into it is under way. */
SHOAL_API int shoal_shared_free(shoal_group *group, const void *memory);

/* --- collectives -----------------------------------------------------------------------------
 *
 * Each function starts a collective of elements of `dtype` and returns: at once, unless the ranks
 * of this node are in the middle of one of the group that they do alone, and this one cannot be
 * done so (it is on a device, say, or large and in the arena); then when that is over. Buffers must
 * stay untouched until it is complete. *request is then the caller's, until shoal_wait or
 * shoal_request_free. With request NULL the function waits until the collective is complete, for
 * the job's timeout at most; after SHOAL_ETIMEOUT the buffers must stay untouched until the job is
 * closed. root is a rank of the group. A buffer of no elements may be NULL. */

/* recv of every rank gets the reduction of all ranks' send, of `count` elements each. send and recv
 * may be the same address. */
SHOAL_API int shoal_all_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                               enum shoal_dtype dtype, enum shoal_op op, shoal_request **request);
/* The root's recv gets the reduction of all ranks' send, of `count` elements each. On the root send
 * and recv may be the same address; elsewhere recv is not used, and may be NULL. */
SHOAL_API int shoal_reduce(shoal_group *group, const void *send, void *recv, size_t count,
                           enum shoal_dtype dtype, enum shoal_op op, int root,
                           shoal_request **request);
/* data of every rank gets the root's data, of `count` elements. */
SHOAL_API int shoal_broadcast(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype,
                              int root, shoal_request **request);
/* Complete when all ranks have started it. It waits for no stream of a device. */
SHOAL_API int shoal_barrier(shoal_group *group, shoal_request **request);

/* --- collectives in which every rank has a part of its own -------------------------------------
 *
 * What is said of collectives above holds here. Without _v all parts have `count` elements and lie
 * side by side, in the order of the ranks. With _v each part has a size of its own, which may be 0,
 * and lies anywhere: send[i] and recv[i] are the parts for and from rank i of the group, and
 * counts[i] their elements. Lists have an entry for each rank, and are read before the function
 * returns.
 *
 * Buffers must not overlap, but a rank's own part may be in place, as each comment says. Ranks that
 * do not agree on the size of a part get SHOAL_EMISMATCH; a rank that the part is not for may be
 * complete before, and then gets it from its next collective of the group. */

/* recv, of all parts, gets every rank's send, of one part. send may be this rank's part of recv. */
SHOAL_API int shoal_all_gather(shoal_group *group, const void *send, void *recv, size_t count,
                               enum shoal_dtype dtype, shoal_request **request);
/* recv[i] gets the send of rank i, of counts[i] elements; all ranks give the same counts. send may
 * be this rank's recv. */
SHOAL_API int shoal_all_gather_v(shoal_group *group, const void *send, void *const recv[],
                                 const size_t counts[], enum shoal_dtype dtype,
                                 shoal_request **request);
/* recv, of one part, gets the reduction of this rank's part of every rank's send. recv may be this
 * rank's part of send. */
SHOAL_API int shoal_reduce_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                                   enum shoal_dtype dtype, enum shoal_op op,
                                   shoal_request **request);
/* recv gets the reduction of every rank's part for this rank; send[i] has counts[i] elements, and
 * all ranks give the same counts. recv may be this rank's send. */
SHOAL_API int shoal_reduce_scatter_v(shoal_group *group, const void *const send[], void *recv,
                                     const size_t counts[], enum shoal_dtype dtype,
                                     enum shoal_op op, shoal_request **request);
/* The root's recv, of all parts, gets every rank's send, of one part. On the root send may be its
 * part of recv; elsewhere recv is not used, and may be NULL. */
SHOAL_API int shoal_gather(shoal_group *group, const void *send, void *recv, size_t count,
                           enum shoal_dtype dtype, int root, shoal_request **request);
/* The root's recv[i] gets the send of rank i. send has `count` elements, and recv[i] counts[i],
 * which is the count of rank i. On the root send may be its recv; elsewhere recv and counts are not
 * used, and may be NULL. */
SHOAL_API int shoal_gather_v(shoal_group *group, const void *send, size_t count, void *const recv[],
                             const size_t counts[], enum shoal_dtype dtype, int root,
                             shoal_request **request);
/* recv of every rank, of one part, gets its part of the root's send, of all parts. On the root recv
 * may be its part of send; elsewhere send is not used, and may be NULL. */
SHOAL_API int shoal_scatter(shoal_group *group, const void *send, void *recv, size_t count,
                            enum shoal_dtype dtype, int root, shoal_request **request);
/* recv of rank i gets the root's send[i]. recv has `count` elements, and send[i] counts[i], which
 * is the count of rank i. On the root recv may be its send; elsewhere send and counts are not used,
 * and may be NULL. */
SHOAL_API int shoal_scatter_v(shoal_group *group, const void *const send[], const size_t counts[],
                              void *recv, size_t count, enum shoal_dtype dtype, int root,
                              shoal_request **request);
/* Part i of recv gets rank i's part for this rank: part j of rank i's send goes to rank j. Both
 * have all parts. */
SHOAL_API int shoal_all_to_all(shoal_group *group, const void *send, void *recv, size_t count,
                               enum shoal_dtype dtype, shoal_request **request);
/* recv[i], of recv_counts[i] elements, gets rank i's send for this rank; send[i] has send_counts[i]
 * elements. Rank i's recv_counts[j] must be rank j's send_counts[i]. Overlaps are not looked for.
 */
SHOAL_API int shoal_all_to_all_v(shoal_group *group, const void *const send[],
                                 const size_t send_counts[], void *const recv[],
                                 const size_t recv_counts[], enum shoal_dtype dtype,
                                 shoal_request **request);

/* --- sends and receives ------------------------------------------------------------------------
 *
 * One rank sends, and another rank of the group receives with the same count, type and tag, from 0
 * to 2^31 - 1. A send and its receive that differ in count or type fail with SHOAL_EMISMATCH on
 * both ranks, and the text has what each gave; nothing is copied, and everything else goes on.
 * Sends with one tag arrive in the order in which they were sent; sends with different tags, and
 * collectives, may be waited for in any order. A rank has 256 sends and 256 receives under way at
 * once; others follow in the order of the calls. request is as in a collective.
 *
 * Data that does not lie in the arena goes through memory taken from it: SHOAL_EMEMORY when that
 * has no room. When the other rank leaves the job the group fails with SHOAL_ELOST. */

/* Send `count` elements to the rank `peer` of the group, not this one. The buffer is free as soon
 * as this returns, unless it lies in the arena or on a device. The request is complete when the
 * other side has the data, so two ranks that both wait for a send before they receive wait in vain.
 */
SHOAL_API int shoal_send(shoal_group *group, const void *data, size_t count, enum shoal_dtype dtype,
                         int peer, int tag, shoal_request **request);
/* Receive `count` elements from the rank `peer` of the group, not this one. */
SHOAL_API int shoal_recv(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype,
                         int peer, int tag, shoal_request **request);
/* Receive `count` elements from whichever rank sends something with the tag first. *source is set
 * to that rank before the request is complete, and must be there until then; source may be NULL. A
 * stream that waits for the request does not tell when *source is set. One rank's sends come in the
 * order in which they were sent. Receives from any rank with one tag are served in the order in
 * which they were started; a receive that names the rank may overtake them. The library looks for a
 * sender by a message to every node of the group, for 64 receives at once. SHOAL_ELOST when all
 * other ranks have left the job. */
SHOAL_API int shoal_recv_any(shoal_group *group, void *data, size_t count, enum shoal_dtype dtype,
                             int tag, int *source, shoal_request **request);

/* In place of the rank that is received from. */
#define SHOAL_ANY_RANK (-1)
/* Receive at most `most` elements, from the rank `peer` or, with SHOAL_ANY_RANK, as in
 * shoal_recv_any. *count is set to how many have come, which the sender decides, before the request
 * is complete, and the rest of data stays as it was; *source as in shoal_recv_any. Both must be
 * there until then, and may be NULL. A send of more, or of another type, fails as one that differs
 * in count. */
SHOAL_API int shoal_recv_up_to(shoal_group *group, void *data, size_t most, enum shoal_dtype dtype,
                               int peer, int tag, int *source, size_t *count,
                               shoal_request **request);

/* --- replays -------------------------------------------------------------------------------------
 *
 * For a rank that was started again, and has come back as a newcomer: the results that it has
 * missed since its checkpoint. In a job with recovery the daemons of other ranks keep those of the
 * last all-reduces of the group of all ranks, as many as they are configured to (replay.keep_steps,
 * replay.keep_bytes). They are the bits that the others got. Each rank that is asked has a daemon,
 * which answers without it. */

/* out gets the result of the all_reduce with this number (shoal_position), which had `count`
 * elements of that type. Waits for a daemon's answer that it has it. request is as in a collective;
 * out is memory of the process. SHOAL_ESTATE: nobody keeps it, or any more; the text says which are
 * kept. SHOAL_EINVALID: it had another count or type; the group is not that of all ranks.
 * SHOAL_EUNSUPPORTED: none are kept. */
SHOAL_API int shoal_replay(shoal_group *group, uint64_t number, void *out, size_t count,
                           enum shoal_dtype dtype, shoal_request **request);
/* Asks all daemons: the least number of a result that is kept into *first, and one more than the
 * greatest into *end; the same: there is none. Between them may be numbers of other collectives,
 * which are not kept. */
SHOAL_API int shoal_replay_kept(shoal_group *group, uint64_t *first, uint64_t *end);

/* --- requests -------------------------------------------------------------------------------- */

/* SHOAL_OK when the request is complete, SHOAL_EAGAIN when it is not, else the error with which it
 * has failed. Frees nothing. */
SHOAL_API int shoal_test(shoal_request *request);
/* Wait until the request is complete, and free it. Returns what it has ended with. On
 * SHOAL_ETIMEOUT the request lives on, and can be waited for again. */
SHOAL_API int shoal_wait(shoal_request *request, int timeout_ms);
/* Wait until one of `count` requests of a job is complete, and free that one: *index is its place
 * in the list, where the caller may put NULL, which is passed over. If several are complete, *index
 * is the first of the list. Returns what that one has ended with; *index is count when none has
 * ended, as on SHOAL_ETIMEOUT. SHOAL_EINVALID: no request is in the list. */
SHOAL_API int shoal_wait_any(shoal_request *const requests[], size_t count, size_t *index,
                             int timeout_ms);
/* Free a request without waiting. It goes on: its buffers must stay untouched until it is complete
 * or the job is closed. */
SHOAL_API void shoal_request_free(shoal_request *request);
/* Have `callback(argument, result)` called once when the request is complete; result is what it has
 * ended with. The library's thread calls it, or a thread that is in shoal_wait, or this one: when
 * the request is complete already, it is called before this returns, so the caller must not hold a
 * lock that the callback takes, and `argument` must be ready. It may start collectives and free the
 * request; it must not block, wait for requests or close the job.
 *
 * The callback may free the request, or the caller later, once. shoal_wait and shoal_request_free
 * may also free it before, and the callback is called all the same. It may run after a shoal_wait
 * for the request has returned, so `argument` is free when the callback has run, or shoal_close has
 * returned. The buffers are free as soon as the callback runs. SHOAL_ESTATE: the request has a
 * callback already. SHOAL_ETIMEOUT: all ranks have come to it, and one has not gone on in the job's
 * time; the request has no callback then. */
SHOAL_API int shoal_request_on_complete(shoal_request *request,
                                        void (*callback)(void *argument, int result),
                                        void *argument);
/* A descriptor for event loops, readable while requests have completed since the last
 * shoal_completions_clear; it may be so before their callbacks have been called. It is the job's:
 * not to be read, written or closed. */
SHOAL_API int shoal_completions_descriptor(shoal_job *job);
/* Have the descriptor not readable until another request completes. */
SHOAL_API int shoal_completions_clear(shoal_job *job);

/* --- memory of a GPU ---------------------------------------------------------------------------
 *
 * A job can have one device. Collectives, sends and receives on its memory keep the order of the
 * framework's streams: one begins when its stream has come to where it was when the function was
 * called, which does not make the host wait; its end the host waits for, or a stream. Data goes
 * through pinned memory of the arena by the copy engines alone: nothing is run on the device. A
 * stream is a CUstream or cudaStream_t, and NULL the default stream. */

/* How to open a device. Zero the structure and set what is known; variables and defaults are as in
 * struct shoal_options. The device takes 72 MiB of an arena of 256 MiB, 9/32 of a smaller one. */
struct shoal_device_options {
    size_t struct_size;    /* sizeof(struct shoal_device_options), for later versions */
    int number;            /* the device, as CUDA counts those of this process */
    const char *library;   /* SHOAL_CUDA_LIBRARY, libcuda.so.1: the driver's library */
    uint64_t pinned_bytes; /* SHOAL_PINNED_BYTES, the daemon's limits.pinned_bytes, which is also
                            * the most: how much of the arena to pin, beginning with the memory
                            * that copies go through */
    int stream_waits; /* SHOAL_STREAM_WAITS, 0: shoal_request_wait_stream has streams wait. Only for
                       * a process that, while one waits, launches no kernel for the first time and
                       * copies nothing to or from memory that is not pinned: CUDA's driver then
                       * waits for the stream with its lock held, so that the copies which the
                       * stream waits for cannot begin, and both wait for ever. 0: the calls that
                       * would have a stream wait say SHOAL_EUNSUPPORTED, or have the host wait */
};

/* Open the job's device, with its primary context. options may be NULL: device 0. The device is
 * closed with the job: shoal_close waits a few seconds until streams have come past their waits for
 * requests, and not when the device has failed. The arena and the context, which the device may use
 * even then, stay until the process ends. SHOAL_EUNSUPPORTED (no driver or too old a one, no
 * device), SHOAL_EINVALID (not one of the devices), SHOAL_ESTATE (the job has one), SHOAL_EMEMORY
 * (the arena could not be pinned: the text says how much was asked for, and by what),
 * SHOAL_ESYSTEM. */
SHOAL_API int shoal_device_open(shoal_job *job, const struct shoal_device_options *options);

/* Where buffers lie. */
enum shoal_memory { SHOAL_MEMORY_HOST = 0, SHOAL_MEMORY_DEVICE = 1 };

/* Where all buffers lie of the collectives, sends and receives that this thread starts on the group
 * from now on, and the stream whose order they keep when that is the device; the host at first. On
 * the device 4096 requests of a job can be under way; another one is SHOAL_EMEMORY. SHOAL_ESTATE:
 * the job has no device. */
SHOAL_API int shoal_group_set_stream(shoal_group *group, enum shoal_memory memory, void *stream);
/* Make a stream of the device wait until the request is complete, failed or not; returns at once,
 * and frees nothing. Work that the stream does next finds the result. When the request is complete
 * already, its result is returned; else SHOAL_OK. SHOAL_EUNSUPPORTED: streams of this device cannot
 * wait for memory, or may not (stream_waits); use shoal_wait. SHOAL_EINVALID: the request is not on
 * the device. */
SHOAL_API int shoal_request_wait_stream(shoal_request *request, void *stream);

/* Return `bytes` of memory of the job's device, for programs without a framework. The memory is the
 * caller's, to be freed before the job is closed. */
SHOAL_API void *shoal_device_alloc(shoal_job *job, size_t bytes);
/* Free memory of shoal_device_alloc. */
SHOAL_API void shoal_device_free(shoal_job *job, void *memory);
/* A stream of the device, for programs without a framework. It is the job's. */
SHOAL_API void *shoal_device_stream(shoal_job *job);
/* Copy `bytes` between memory of the device and of the process, in the order of the stream of
 * shoal_device_stream, and wait for the copy. One that fails with the device may go on. */
SHOAL_API int shoal_device_copy(shoal_job *job, void *to, const void *from, size_t bytes);

/* --- fusion buffers ----------------------------------------------------------------------------
 *
 * Gradients are gathered in a buffer until a threshold is passed, and all-reduced as one while the
 * backward pass goes on. Register the parameters once, say ready as each gradient appears, wait at
 * the end of the step; the results are then in the gradients. In the first step the buffers have
 * the reverse order of registration; from then on the order in which gradients became ready in the
 * first step on rank 0, which tells the others. Types are never mixed in one buffer.
 *
 * On a device gradients that the caller has are brought together, and results written back, on the
 * stream of shoal_fusion_set_stream. Gradients are ready when that stream has come to where it was
 * when the last one of their buffer was said to be. */

/* A parameter of the model. */
struct shoal_parameter {
    void *gradient; /* memory of the gradient, the caller's; NULL: the library allocates it inside
                     * its fusion buffer, so that nothing is copied (shoal_fusion_gradient) */
    size_t count;   /* elements */
    enum shoal_dtype dtype;
};

/* How to make fusion buffers. Zero the structure and set what is to differ from the default. */
struct shoal_fusion_options {
    size_t struct_size;        /* sizeof(struct shoal_fusion_options), for later versions */
    size_t threshold_bytes;    /* 0: 25 MiB, or data.chunk_bytes for each server if more */
    size_t first_buffer_bytes; /* 0: 1 MiB; the threshold of the first buffer, which goes early */
    enum shoal_op op;          /* SHOAL_SUM or SHOAL_AVG */
    int on_device;             /* not 0: gradients and buffers are in memory of the job's device */
    void *device_memory;       /* for the buffers, of shoal_fusion_bytes; NULL: the library's */
};

/* Register the parameters, in the order of the forward pass, the same on all ranks of the group.
 * The list is read before this returns; options may be NULL. *fusion is the caller's until
 * shoal_fusion_free or shoal_close. SHOAL_EMEMORY (the arena or the device has no room),
 * SHOAL_ESTATE (on_device, and the job has no device). */
SHOAL_API int shoal_fusion_create(shoal_group *group, const struct shoal_parameter *parameters,
                                  size_t parameter_count,
                                  const struct shoal_fusion_options *options,
                                  shoal_fusion **fusion);
/* Wait for the collectives that are under way, for the job's timeout at most, and free the buffers.
 * Collectives that are not over then keep their memory until the job is closed, and gradients and
 * device_memory of the caller's must stay as long. */
SHOAL_API void shoal_fusion_free(shoal_fusion *fusion);
/* The bytes that the buffers of these parameters take, in whichever order; 0 when that is too much.
 */
SHOAL_API size_t shoal_fusion_bytes(const struct shoal_parameter *parameters,
                                    size_t parameter_count);
/* On a device: the stream that gradients are ready on; the default one at first. It may be changed
 * between steps: the new one comes behind the results of the last. SHOAL_EINVALID: not on a device;
 * SHOAL_ESTATE: in the middle of a step. */
SHOAL_API int shoal_fusion_set_stream(shoal_fusion *fusion, void *stream);
/* Where the gradient of the parameter with this index lies. Memory that the library has allocated
 * moves at the end of the first step, and in shoal_job_reconfigure. NULL: there is no such
 * parameter. */
SHOAL_API void *shoal_fusion_gradient(shoal_fusion *fusion, size_t index);
/* Say that the gradient of the parameter with this index is complete. It must then stay untouched
 * until the end of the step. In any order and by any thread, once for each parameter in a step:
 * SHOAL_EINVALID for a second time, SHOAL_ESTATE while the step is waited for. */
SHOAL_API int shoal_fusion_ready(shoal_fusion *fusion, size_t index);
/* End the step: reduce what is not yet under way, a parameter without a gradient in this step as
 * zero, and wait for all buffers. On SHOAL_ETIMEOUT the next call goes on. SHOAL_ESTATE: another
 * thread is in it. */
SHOAL_API int shoal_fusion_wait(shoal_fusion *fusion, int timeout_ms);
/* On a device: end the step without the host waiting. Work that comes next on `stream`, that of
 * shoal_fusion_set_stream or another, finds the results, and so does work that comes next on the
 * stream of shoal_fusion_set_stream; the next step may begin at once. A failure shows in the next
 * call. The host does wait, as in shoal_fusion_wait, at the end of the first step, in which ranks
 * agree on an order, and where streams of the device cannot wait for memory, or may not
 * (stream_waits of shoal_device_open). SHOAL_EINVALID: not on a device. */
SHOAL_API int shoal_fusion_wait_stream(shoal_fusion *fusion, void *stream, int timeout_ms);

/* The last finished step, for measuring how much of the communication was hidden. One that ends on
 * a stream is finished when its results are there. Times are as the host sees them. */
struct shoal_fusion_statistics {
    size_t struct_size;        /* sizeof(struct shoal_fusion_statistics), set by the caller */
    uint64_t buffers;          /* fusion buffers sent */
    uint64_t bytes;            /* of all of them */
    uint64_t communication_ns; /* time during which at least one buffer was under way */
    uint64_t exposed_ns;       /* the part of it in which shoal_fusion_wait, or the stream of
                                * shoal_fusion_wait_stream, has waited */
};

/* Fill *statistics as far as its struct_size; zeros before the first step is finished. */
SHOAL_API int shoal_fusion_statistics(const shoal_fusion *fusion,
                                      struct shoal_fusion_statistics *statistics);

/* --- words ----------------------------------------------------------------------------------- */

/* Return what went wrong in the last failed call of this thread; "" when none failed. Never NULL,
 * and valid until the thread's next call. */
SHOAL_API const char *shoal_error_text(void);
/* The constant name of a code: "rank lost". Never NULL. */
SHOAL_API const char *shoal_result_name(int result);
/* The version of the library, a constant text: "0.1.0". */
SHOAL_API const char *shoal_version(void);
/* The bytes of an element; 0 for what is no type. */
SHOAL_API size_t shoal_dtype_bytes(enum shoal_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
