#include "worker/device/device_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/clock.h"

/* A part's copy takes at least as long as the calls that it costs: about 5 calls, of 1 to 5 us
 * each. */
#define PART_NS 16000u
#define PART_BYTES_MIN (256u << 10)
#define PART_BYTES_MAX (4u << 20)

int device_queue_create(struct device_queue **queue, struct device *device, uint64_t link_rate,
                        struct progress *progress, struct error *error)
{
    struct device_queue *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for a device");
    made->device = device;
    made->progress = progress;
    uint64_t worth = link_rate / (NS_PER_S / PART_NS);
    if (link_rate > 0)
        progress->part_least_bytes = worth < PART_BYTES_MIN   ? PART_BYTES_MIN
                                     : worth > PART_BYTES_MAX ? PART_BYTES_MAX
                                                              : worth;
    for (uint32_t i = 0; i < DEVICE_WORDS; i++)
        made->free_words[i] = (uint16_t)(DEVICE_WORDS - 1 - i);
    made->free_count = DEVICE_WORDS;
    *queue = made;
    return 0;
}

static void free_flights(struct device_queue *queue, struct device_flight *flights)
{
    struct device_flight *flight, *next;
    DL_FOREACH_SAFE(flights, flight, next)
    {
        device_event_destroy(queue->device, flight->event);
        free(flight);
    }
}

static void free_arrivals(struct device_queue *queue, struct device_arrival *arrivals)
{
    struct device_arrival *arrival, *next;
    DL_FOREACH_SAFE(arrivals, arrival, next)
    {
        device_event_destroy(queue->device, arrival->event);
        free(arrival);
    }
}

void device_queue_destroy(struct device_queue *queue)
{
    for (unsigned lane = 0; lane < DEVICE_LANES; lane++) {
        free_flights(queue, queue->flights[lane]);
        free_flights(queue, queue->loading[lane]);
    }
    free_flights(queue, queue->unbegun);
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++)
        free_arrivals(queue, queue->gates[gate]);
    free_flights(queue, queue->spare_flights);
    if (queue->waits)
        device_queue_give_back(queue, queue->waits);
    free_arrivals(queue, queue->spare_arrivals);
    device_close(queue->device);
    free(queue);
}

/* Ask for a ring, unless the bell will ring anyway. */
static int device_queue_ring(struct device_queue *queue, unsigned bell, void *event,
                             struct error *error)
{
    if (queue->bells & 1u << bell)
        return 0;
    int code = device_ring_after(queue->device, bell, event, error);
    if (code == 0) {
        queue->bells |= 1u << bell;
        queue->rung_for[bell] = event;
    }
    return code;
}

/* The event has occurred, and will be recorded again: a ring that is still to come tells nothing of
 * that. */
static void forget_ring(struct device_queue *queue, unsigned bell, const void *event)
{
    if (queue->rung_for[bell] == event)
        queue->rung_for[bell] = NULL;
}

/* Something is about to be under way: look after it, from now on if nothing else was. */
static void expect(struct device_queue *queue, uint64_t now_ns)
{
    if (!device_queue_busy(queue))
        queue->look_ns = now_ns + DEVICE_LOOK_NS;
}

/* --- gates and words ----------------------------------------------------------------------- */

struct device_arrival *device_queue_take(struct device_queue *queue, struct error *error)
{
    struct device_arrival *arrival = queue->spare_arrivals;
    if (arrival) {
        DL_DELETE(queue->spare_arrivals, arrival);
        return arrival;
    }
    arrival = calloc(1, sizeof(*arrival));
    if (!arrival) {
        error_set(error, ERR_MEMORY, "out of memory for a collective on a device");
        return NULL;
    }
    if (device_event_create(queue->device, &arrival->event, error) < 0) {
        free(arrival);
        return NULL;
    }
    return arrival;
}

/* The gate where the stream's last request waits, else an empty one, else any. */
static unsigned choose_gate(const struct device_queue *queue, const void *stream)
{
    unsigned chosen = (unsigned)((uintptr_t)stream / 64 % DEVICE_GATES);
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++) {
        if (!queue->gates[gate])
            chosen = gate;
        else if (queue->gates[gate]->prev->stream == stream)
            return gate;
    }
    return chosen;
}

void device_queue_give_back(struct device_queue *queue, struct device_arrival *arrival)
{
    DL_APPEND(queue->spare_arrivals, arrival);
}

/* Let the arrival wait at a gate. */
static void arrive(struct device_queue *queue, struct device_arrival *arrival, unsigned gate,
                   uint64_t now_ns)
{
    expect(queue, now_ns);
    DL_APPEND(queue->gates[gate], arrival);
}

int device_queue_enter(struct device_queue *queue, struct device_arrival *arrival,
                       const struct request_ask *ask, struct request *request,
                       struct device_ticket *ticket, bool occurred, uint64_t now_ns,
                       struct error *error)
{
    if (queue->free_count == 0) {
        device_queue_give_back(queue, arrival);
        return error_set(error, ERR_MEMORY, "%u collectives on GPU %d are under way: the most",
                         DEVICE_WORDS, device_number(queue->device));
    }
    arrival->stream = ask->stream;
    arrival->request = request;
    arrival->note = NULL;
    if (occurred)
        device_queue_give_back(queue, arrival);
    else
        arrive(queue, arrival, choose_gate(queue, arrival->stream), now_ns);
    ticket->word = queue->free_words[--queue->free_count];
    ticket->value = ++queue->values[ticket->word];
    return 0;
}

bool device_queue_unasked(const struct device_queue *queue)
{
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++) {
        if (queue->gates[gate] && !(queue->bells & 1u << (DEVICE_BELL_GATE + gate)))
            return true;
    }
    return false;
}

int device_queue_note(struct device_queue *queue, struct device_arrival *arrival, void *stream,
                      struct device_note *note, bool occurred, uint64_t now_ns, struct error *error)
{
    arrival->stream = stream;
    arrival->request = NULL;
    arrival->note = note;
    if (occurred) {
        note->occurred_ns = now_ns;
        device_queue_give_back(queue, arrival);
        return 0;
    }
    /* Nobody need be driving: the ring is asked for now. */
    unsigned gate = choose_gate(queue, stream);
    int code =
        device_queue_ring(queue, DEVICE_BELL_GATE + gate,
                          queue->gates[gate] ? queue->gates[gate]->event : arrival->event, error);
    if (code < 0)
        device_queue_give_back(queue, arrival);
    else
        arrive(queue, arrival, gate, now_ns);
    return code;
}

void device_queue_forget(struct device_queue *queue, const struct device_note *note)
{
    struct device_arrival *arrival;
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++) {
        DL_FOREACH(queue->gates[gate], arrival)
        {
            if (arrival->note == note)
                arrival->note = NULL;
        }
    }
}

void device_queue_leave(struct device_queue *queue, const struct request *request,
                        const struct device_ticket *ticket)
{
    struct device_arrival *arrival;
    for (unsigned gate = 0; request->waiting && gate < DEVICE_GATES; gate++) {
        DL_FOREACH(queue->gates[gate], arrival)
        {
            if (arrival->request == request)
                arrival->request = NULL;
        }
    }
    atomic_store_explicit(device_word(queue->device, ticket->word), ticket->value,
                          memory_order_release);
    queue->free_words[queue->free_count++] = (uint16_t)ticket->word;
}

/* --- copies -------------------------------------------------------------------------------- */

static struct device_flight *make_flight(struct device_queue *queue, struct error *error)
{
    struct device_flight *flight = queue->spare_flights;
    if (flight) {
        DL_DELETE(queue->spare_flights, flight);
        flight->marked = false;
        flight->count = 0;
        flight->pieces = 0;
        flight->bytes = 0;
    } else {
        flight = calloc(1, sizeof(*flight));
        if (!flight) {
            error_set(error, ERR_MEMORY, "out of memory for a device's copies");
            return NULL;
        }
        if (device_event_create(queue->device, &flight->event, error) < 0) {
            free(flight);
            return NULL;
        }
    }
    return flight;
}

static void land(struct device_queue *queue, struct device_flight *flight, uint64_t now_ns)
{
    for (uint32_t i = 0; i < flight->count; i++)
        progress_copied(queue->progress, &flight->copies[i], now_ns);
    DL_APPEND(queue->spare_flights, flight);
}

static bool is_awaited(const struct device_flight *flight)
{
    bool awaited = false;
    for (uint32_t i = 0; i < flight->count; i++)
        awaited |= progress_copy_awaited(&flight->copies[i]);
    return awaited;
}

/* Tell progress whether as many copies out are under way as may be. */
static void count_out(struct device_queue *queue)
{
    const struct device_flight *flight;
    unsigned count = 0;
    DL_COUNT(queue->flights[DEVICE_OUT], flight, count);
    queue->progress->device_full = count >= DEVICE_FLIGHTS_OUT;
}

static uint32_t list_copies(const struct device_queue *queue, const struct device_flight *flight,
                            struct device_copy *copies)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < flight->count; i++) {
        for (uint32_t k = 0; k < progress_copy_pieces(&flight->copies[i]); k++) {
            struct progress_copy copy = progress_nth_piece(queue->progress, &flight->copies[i], k);
            if (copy.bytes > 0)
                copies[count++] =
                    (struct device_copy){.to = copy.to, .from = copy.from, .bytes = copy.bytes};
        }
    }
    return count;
}

static int begin_lane(struct device_queue *queue, enum device_lane lane, uint64_t now_ns,
                      struct error *error)
{
    struct device_flight *flight = queue->loading[lane];
    struct device_copy copies[DEVICE_COPIES_MAX];
    bool begun = false;
    if (!flight)
        return 0;
    queue->loading[lane] = NULL;
    uint32_t count = list_copies(queue, flight, copies);
    flight->marked = lane == DEVICE_OUT || count == 0 || is_awaited(flight) ||
                     progress_short_of_memory(queue->progress);
    int code = device_copy(queue->device, lane, copies, count,
                           flight->marked ? flight->event : NULL, &begun, error);
    if (!begun) {
        DL_APPEND(queue->unbegun, flight);
        return code;
    }
    expect(queue, now_ns);
    DL_APPEND(queue->flights[lane], flight);
    count_out(queue);
    return code;
}

/* The event that tells of the oldest copies; NULL: none does yet. */
static void *oldest_event(const struct device_queue *queue, enum device_lane lane)
{
    const struct device_flight *flight;
    DL_SEARCH_SCALAR(queue->flights[lane], flight, marked, true);
    return flight ? flight->event : NULL;
}

static bool in_is_awaited(const struct device_queue *queue)
{
    const struct device_flight *flight;
    DL_FOREACH(queue->flights[DEVICE_IN], flight)
    {
        if (is_awaited(flight))
            return true;
    }
    /* The rings of copies out are enough while some go on. */
    return queue->flights[DEVICE_IN] && !queue->flights[DEVICE_OUT] &&
           progress_short_of_memory(queue->progress);
}

static int ring_lane(struct device_queue *queue, enum device_lane lane, struct error *error)
{
    struct device_flight *last = queue->flights[lane]->prev;
    bool begun;
    if (!oldest_event(queue, lane)) {
        int code = device_copy(queue->device, lane, NULL, 0, last->event, &begun, error);
        if (code < 0)
            return code;
        last->marked = true;
    }
    return device_queue_ring(queue, lane, oldest_event(queue, lane), error);
}

/* Ask for the rings that somebody waits for. */
static int ask_for_rings(struct device_queue *queue, struct error *error)
{
    int code = 0;
    if (queue->flights[DEVICE_OUT])
        code = ring_lane(queue, DEVICE_OUT, error);
    if (code == 0 && in_is_awaited(queue))
        code = ring_lane(queue, DEVICE_IN, error);
    for (unsigned gate = 0; gate < DEVICE_GATES && code == 0; gate++) {
        if (queue->gates[gate])
            code =
                device_queue_ring(queue, DEVICE_BELL_GATE + gate, queue->gates[gate]->event, error);
    }
    return code;
}

int device_queue_begin(struct device_queue *queue, uint64_t now_ns, struct error *error)
{
    int code = begin_lane(queue, DEVICE_OUT, now_ns, error);
    if (code == 0)
        code = begin_lane(queue, DEVICE_IN, now_ns, error);
    return code < 0 ? code : ask_for_rings(queue, error);
}

static bool leaves_device(const struct progress_copy *copy)
{
    return copy->slot ? copy->slot->state == STAGING_TAKEN
                      : copy->request->state == REQUEST_LOADING;
}

int device_queue_add(struct device_queue *queue, const struct progress_copy *copy, uint64_t now_ns,
                     struct error *error)
{
    enum device_lane lane = leaves_device(copy) ? DEVICE_OUT : DEVICE_IN;
    uint32_t pieces = progress_copy_pieces(copy);
    struct device_flight *flight = queue->loading[lane];
    if (flight && flight->pieces + pieces > DEVICE_COPIES_MAX) {
        int code = begin_lane(queue, lane, now_ns, error);
        if (code < 0)
            return code;
        flight = NULL;
    }
    if (!flight) {
        uint64_t waiting = progress_waiting_bytes(queue->progress);
        if (!(flight = make_flight(queue, error)))
            return error->code;
        /* The waiting requests move in as many flights as one request of their size. */
        flight->most_bytes = progress_part_bytes(queue->progress, waiting + copy->bytes);
        DL_APPEND(queue->loading[lane], flight);
    }
    flight->copies[flight->count++] = *copy;
    flight->pieces += pieces;
    flight->bytes += copy->bytes;
    progress_copying(queue->progress, copy);
    bool full = flight->count == DEVICE_FLIGHT_COPIES || flight->bytes >= flight->most_bytes;
    return full ? begin_lane(queue, lane, now_ns, error) : 0;
}

/* A look at a gate remembers this of one stream. */
struct stream_look {
    const void *stream;
    bool none; /* its oldest event here has not occurred: those after it are not asked for now */
};

/* Each event tells of itself alone: one handle may stand for a stream of each thread, and two
 * threads may have recorded theirs in another order than they came here. */
static int ask_for_event(struct device_queue *queue, const struct device_arrival *arrival,
                         struct stream_look *look, struct error *error)
{
    if (look->stream == arrival->stream && look->none)
        return 0;
    int done = device_event_done(queue->device, arrival->event, error);
    *look = (struct stream_look){.stream = arrival->stream, .none = done == 0};
    return done;
}

/* Let those through whose events have occurred. More than the oldest may have: streams differ. */
static int open_gate(struct device_queue *queue, unsigned gate, const void *occurred,
                     uint64_t now_ns, struct error *error)
{
    struct progress_copy copy;
    struct device_arrival *arrival, *next;
    struct stream_look look = {.stream = &look}; /* of none yet */
    int moved = 0;
    DL_FOREACH_SAFE(queue->gates[gate], arrival, next)
    {
        int done = arrival->event == occurred ? 1 : ask_for_event(queue, arrival, &look, error);
        if (done < 0)
            return done;
        if (done == 0)
            continue;
        forget_ring(queue, DEVICE_BELL_GATE + gate, arrival->event);
        DL_DELETE(queue->gates[gate], arrival);
        device_queue_give_back(queue, arrival);
        moved = 1;
        if (arrival->note)
            arrival->note->occurred_ns = now_ns;
        if (arrival->request)
            arrival->request->ready_ns = now_ns;
        if (!arrival->request || !progress_ready(queue->progress, arrival->request, &copy))
            continue;
        int code = device_queue_add(queue, &copy, now_ns, error);
        if (code < 0)
            return code;
    }
    return moved;
}

/* The copies up to those of which this event tells have ended. */
static void land_until(struct device_queue *queue, enum device_lane lane, const void *event,
                       uint64_t now_ns)
{
    struct device_flight *flight;
    bool more = true;
    while (more && (flight = queue->flights[lane])) {
        more = flight->event != event;
        forget_ring(queue, lane, flight->event);
        DL_DELETE(queue->flights[lane], flight);
        land(queue, flight, now_ns);
    }
    count_out(queue);
}

/* 1: the event has occurred; 0: it has not, or there is none. */
static int land_if_done(struct device_queue *queue, enum device_lane lane, void *event,
                        uint64_t now_ns, struct error *error)
{
    int done = event ? device_event_done(queue->device, event, error) : 0;
    if (done > 0)
        land_until(queue, lane, event, now_ns);
    return done;
}

/* Look at the lane without a ring, by a query. */
static int look_at_lane(struct device_queue *queue, enum device_lane lane, uint64_t now_ns,
                        struct error *error)
{
    struct device_flight *flight = queue->flights[lane] ? queue->flights[lane]->prev : NULL;
    if (!flight)
        return 0;
    while (!flight->marked && flight != queue->flights[lane])
        flight = flight->prev;
    if (flight->marked)
        return land_if_done(queue, lane, flight->event, now_ns, error);
    return ring_lane(queue, lane, error);
}

/* Take what a bell tells: a ring, or its absence for a long time. */
static int hear(struct device_queue *queue, unsigned bell, bool rung, bool look_now,
                uint64_t now_ns, struct error *error)
{
    void *occurred = rung ? queue->rung_for[bell] : NULL;
    if (rung) {
        queue->bells &= ~(1u << bell);
        queue->rung_for[bell] = NULL;
    }
    if (bell >= DEVICE_LANES)
        return rung || look_now ? open_gate(queue, bell - DEVICE_BELL_GATE, occurred, now_ns, error)
                                : 0;
    if (occurred)
        land_until(queue, (enum device_lane)bell, occurred, now_ns);
    else if (look_now)
        return look_at_lane(queue, (enum device_lane)bell, now_ns, error);
    return occurred != NULL;
}

int device_queue_poll(struct device_queue *queue, uint64_t now_ns, struct error *error)
{
    bool look_now = device_queue_busy(queue) && now_ns >= queue->look_ns;
    uint32_t rung = queue->bells ? device_rung(queue->device) & queue->bells : 0;
    int moved = 0;
    if (look_now || rung)
        queue->look_ns = now_ns + DEVICE_LOOK_NS;
    for (unsigned bell = 0; bell < DEVICE_BELL_WAITS; bell++) {
        int code = hear(queue, bell, rung & 1u << bell, look_now, now_ns, error);
        if (code < 0)
            return code;
        moved |= code;
    }
    if (rung & 1u << DEVICE_BELL_OUT && progress_short_of_memory(queue->progress)) {
        int code = land_if_done(queue, DEVICE_IN, oldest_event(queue, DEVICE_IN), now_ns, error);
        if (code < 0)
            return code;
        moved |= code;
    }
    int code = device_queue_begin(queue, now_ns, error);
    return code < 0 ? code : moved;
}

bool device_queue_copying(const struct device_queue *queue)
{
    return queue->flights[DEVICE_OUT] || queue->flights[DEVICE_IN];
}

bool device_queue_busy(const struct device_queue *queue)
{
    bool busy = device_queue_copying(queue);
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++)
        busy |= queue->gates[gate] != NULL;
    return busy;
}

uint64_t device_queue_deadline_ns(const struct device_queue *queue)
{
    return device_queue_busy(queue) ? queue->look_ns : UINT64_MAX;
}

static void land_all(struct device_queue *queue, struct device_flight **flights, uint64_t now_ns)
{
    struct device_flight *flight;
    while ((flight = *flights)) {
        DL_DELETE(*flights, flight);
        land(queue, flight, now_ns);
    }
}

void device_queue_abandon(struct device_queue *queue, uint64_t now_ns)
{
    if (device_queue_copying(queue))
        device_settle(queue->device);
    for (unsigned lane = 0; lane < DEVICE_LANES; lane++) {
        land_all(queue, &queue->loading[lane], now_ns);
        land_all(queue, &queue->flights[lane], now_ns);
    }
    land_all(queue, &queue->unbegun, now_ns);
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++) {
        DL_CONCAT(queue->spare_arrivals, queue->gates[gate]);
        queue->gates[gate] = NULL;
    }
    memset(queue->rung_for, 0, sizeof(queue->rung_for));
    count_out(queue);
}

int device_queue_ring_waits(struct device_queue *queue, struct error *error)
{
    if (!queue->streams_waited)
        return 1;
    if (!queue->waits && !(queue->waits = device_queue_take(queue, error)))
        return error->code;
    return device_ring_after(queue->device, DEVICE_BELL_WAITS, queue->waits->event, error);
}

int device_queue_waits_done(struct device_queue *queue, struct error *error)
{
    return device_event_done(queue->device, queue->waits->event, error);
}
