/* Everything that is under way between a device and the arena: requests that wait for their
 * streams, copies, and the words that streams of the caller's wait for.
 *
 *   stream --event--> gate --> progress: slots --> copies out, and later in --> word --> stream
 *
 * A request gets an event on its stream and waits at a gate until that has occurred; nothing on the
 * library's streams waits for the caller's. Events of one gate ring in the order of the calls. An
 * event can only depend on requests that were asked for before it, so the oldest at every gate is
 * never behind what waits for it.
 *
 * The library asks the GPU's driver as little as can be. Each bell is asked to ring once at a time,
 * for the oldest event behind it; when it has rung, that event and everything before it on its
 * stream have occurred: no query is needed. Copies out are followed by an event each, since their
 * data goes on at once. A copy in gets one, and a ring, only when something waits for its end
 * (progress_copy_awaited, or memory is short); else the next event of the lane tells of it too. A
 * device that has failed need not ring: without one, each lane and gate is looked at every
 * DEVICE_LOOK_NS, by a query.
 *
 * Copies that are due together go in one flight. Only DEVICE_FLIGHTS_OUT flights out of the device
 * are under way: one is carried out and the next is there when it ends; a later copy, perhaps of a
 * higher priority, waits for these alone.
 *
 * Streams of the caller's may be full, and go on only when the driver does: nothing is put onto
 * them with the job's lock held. The caller holds it around every call; the copies of one request
 * go in order.
 *
 * Calls device.h, worker/progress and common/base.
 */
#ifndef WORKER_DEVICE_DEVICE_QUEUE_H
#define WORKER_DEVICE_DEVICE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "worker/device/device.h"
#include "worker/progress/progress.h"

#define DEVICE_LOOK_NS 100000000ull
#define DEVICE_FLIGHTS_OUT 2u
#define DEVICE_FLIGHT_COPIES 64u

/* Copies that were begun together. */
struct device_flight {
    void *event;
    bool marked; /* the event will tell when it has ended; else a later one will */
    uint32_t count, pieces;
    uint64_t bytes, most_bytes; /* it is begun when it has as many */
    struct progress_copy copies[DEVICE_FLIGHT_COPIES];
    struct device_flight *prev, *next;
};

/* When a stream was seen to have come so far; 0: not yet. */
struct device_note {
    uint64_t occurred_ns;
};

/* A request at a gate, or a note. */
struct device_arrival {
    void *event;
    void *stream;
    struct request *request;  /* NULL: it has failed, or there is none */
    struct device_note *note; /* or NULL */
    struct device_arrival *prev, *next;
};

struct device_queue {
    struct device *device;
    struct progress *progress;
    struct device_flight *flights[DEVICE_LANES]; /* oldest first */
    struct device_flight *loading[DEVICE_LANES]; /* not begun yet, or NULL */
    struct device_flight *unbegun;               /* could not be begun */
    struct device_arrival *gates[DEVICE_GATES];  /* oldest first */
    struct device_flight *spare_flights;
    struct device_arrival *spare_arrivals;
    uint32_t bells;               /* bits: which bells will ring */
    void *rung_for[DEVICE_BELLS]; /* the event after which they do; NULL: it is known already */
    uint64_t look_ns;             /* when to look without a ring */
    bool streams_waited;          /* some stream was made to wait for a word */
    struct device_arrival *waits; /* for the end of all such waits; NULL before that is asked for */
    uint32_t values[DEVICE_WORDS]; /* that were given for each word */
    uint16_t free_words[DEVICE_WORDS];
    uint32_t free_count;
};

/* A word that is written when a request is complete. Values of a word only grow, so that it can be
 * given to the next request while streams are still to come past a wait for this one's value. */
struct device_ticket {
    uint32_t word, value;
};

/* device: taken over on success. link_rate: of its link, in bytes a second; 0: not known. How small
 * a copy is worth its calls follows it. ERR_MEMORY. */
int device_queue_create(struct device_queue **queue, struct device *device, uint64_t link_rate,
                        struct progress *progress, struct error *error);
/* Frees it with its device. Nothing may be under way on the device. */
void device_queue_destroy(struct device_queue *queue);

/* An event for a stream of the caller's; NULL: *error says why there is none. */
struct device_arrival *device_queue_take(struct device_queue *queue, struct error *error);
/* Give back what device_queue_take gave, if nothing waits for it. */
void device_queue_give_back(struct device_queue *queue, struct device_arrival *arrival);

/* A request that is about to be submitted, its event recorded on its stream: a ticket for it, and
 * it waits at a gate, unless the event has occurred already (progress_ready is the caller's then).
 * device_queue_poll asks for the gate's ring. arrival is taken over. ERR_MEMORY: nothing stays
 * behind. */
int device_queue_enter(struct device_queue *queue, struct device_arrival *arrival,
                       const struct request_ask *ask, struct request *request,
                       struct device_ticket *ticket, bool occurred, uint64_t now_ns,
                       struct error *error);
/* Whether a request is at a gate whose ring has not been asked for. */
bool device_queue_unasked(const struct device_queue *queue);
/* Note that the arrival's event was recorded on a stream, and may have occurred. The queue takes
 * the arrival over; the note must stay until the event has occurred or is forgotten. */
int device_queue_note(struct device_queue *queue, struct device_arrival *arrival, void *stream,
                      struct device_note *note, bool occurred, uint64_t now_ns,
                      struct error *error);
/* The note is about to go. */
void device_queue_forget(struct device_queue *queue, const struct device_note *note);
/* The request is complete, or was not submitted after all: write its word. */
void device_queue_leave(struct device_queue *queue, const struct request *request,
                        const struct device_ticket *ticket);

/* Take a copy over (PROGRESS_COPY); it is begun by device_queue_begin, or when there are enough. */
int device_queue_add(struct device_queue *queue, const struct progress_copy *copy, uint64_t now_ns,
                     struct error *error);
/* Begin the copies that were taken over. */
int device_queue_begin(struct device_queue *queue, uint64_t now_ns, struct error *error);
/* See what has come to its end, and tell progress. 1 when something has, 0 when not. */
int device_queue_poll(struct device_queue *queue, uint64_t now_ns, struct error *error);
/* Whether copies are under way, or requests at a gate. */
bool device_queue_busy(const struct device_queue *queue);
/* Whether copies are under way. */
bool device_queue_copying(const struct device_queue *queue);
/* When to call device_queue_poll though nothing has rung; UINT64_MAX when there is nothing. */
uint64_t device_queue_deadline_ns(const struct device_queue *queue);
/* After an error of device_queue_add, _begin or _poll, when the job has been failed for it: nobody
 * waits at the gates any more. When this returns no copy is under way: the GPU's driver has waited
 * for them, or it waits for nothing any more, and they are lost (device_copies_lost). */
void device_queue_abandon(struct device_queue *queue, uint64_t now_ns);

/* When no stream is made to wait for a word any more: ask that DEVICE_BELL_WAITS ring. 1: no stream
 * ever was; 0: the bell will ring, or the device fails. */
int device_queue_ring_waits(struct device_queue *queue, struct error *error);
/* After device_queue_ring_waits gave 0: 1 when all streams have come past their waits, which is so
 * before the bell rings; 0 when not. */
int device_queue_waits_done(struct device_queue *queue, struct error *error);

#endif
