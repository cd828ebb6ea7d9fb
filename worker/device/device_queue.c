#include "worker/device/device_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

int device_queue_create(struct device_queue **queue, struct device *device,
                        struct progress *progress, struct error *error)
{
    struct device_queue *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "out of memory for a device");
    made->device = device;
    made->progress = progress;
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
    if (code == 0)
        queue->bells |= 1u << bell;
    return code;
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

/* 1: the stream has come so far already; 0: the request is at a gate. */
static int arrive(struct device_queue *queue, struct device_arrival *arrival, bool own_part,
                  uint64_t now_ns, struct error *error)
{
    unsigned gate = choose_gate(queue, arrival->stream);
    /* Who has a copy to begin at once comes through the gate in any case: the driver begins it. */
    int code = own_part ? 0 : device_event_done(queue->device, arrival->event, error);
    if (code == 0)
        code = device_queue_ring(queue, DEVICE_BELL_GATE + gate,
                                 queue->gates[gate] ? queue->gates[gate]->event : arrival->event,
                                 error);
    if (code != 0) {
        device_queue_give_back(queue, arrival);
        return code;
    }
    expect(queue, now_ns);
    DL_APPEND(queue->gates[gate], arrival);
    return 0;
}

int device_queue_enter(struct device_queue *queue, struct device_arrival *arrival,
                       const struct request_ask *ask, struct request *request,
                       struct device_ticket *ticket, bool *ready, uint64_t now_ns,
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
    int code = arrive(queue, arrival, ask->own_bytes > 0, now_ns, error);
    if (code < 0)
        return code;
    *ready = code > 0;
    ticket->word = queue->free_words[--queue->free_count];
    ticket->value = ++queue->values[ticket->word];
    return 0;
}

int device_queue_note(struct device_queue *queue, struct device_arrival *arrival, void *stream,
                      struct device_note *note, uint64_t now_ns, struct error *error)
{
    arrival->stream = stream;
    arrival->request = NULL;
    arrival->note = note;
    int code = arrive(queue, arrival, false, now_ns, error);
    if (code > 0)
        note->occurred_ns = now_ns;
    return code < 0 ? code : 0;
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
        flight->count = 0;
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

static int begin_lane(struct device_queue *queue, enum device_lane lane, uint64_t now_ns,
                      struct error *error)
{
    struct device_flight *flight = queue->loading[lane];
    struct device_copy copies[DEVICE_COPIES_MAX];
    bool begun = false;
    if (!flight)
        return 0;
    queue->loading[lane] = NULL;
    for (uint32_t i = 0; i < flight->count; i++)
        copies[i] = (struct device_copy){.to = flight->copies[i].to,
                                         .from = flight->copies[i].from,
                                         .bytes = flight->copies[i].bytes};
    int code =
        device_copy(queue->device, lane, copies, flight->count, flight->event, &begun, error);
    if (!begun) {
        DL_APPEND(queue->unbegun, flight);
        return code;
    }
    expect(queue, now_ns);
    DL_APPEND(queue->flights[lane], flight);
    if (code == 0)
        code = device_queue_ring(queue, lane, queue->flights[lane]->event, error);
    return code;
}

int device_queue_begin(struct device_queue *queue, uint64_t now_ns, struct error *error)
{
    int code = begin_lane(queue, DEVICE_OUT, now_ns, error);
    return code < 0 ? code : begin_lane(queue, DEVICE_IN, now_ns, error);
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
    struct device_flight *flight = queue->loading[lane];
    if (!flight && !(flight = make_flight(queue, error)))
        return error->code;
    if (!queue->loading[lane])
        DL_APPEND(queue->loading[lane], flight);
    flight->copies[flight->count++] = *copy;
    flight->bytes += copy->bytes;
    progress_copying(queue->progress, copy);
    bool full = flight->count == DEVICE_COPIES_MAX || flight->bytes >= DEVICE_FLIGHT_BYTES;
    return full ? begin_lane(queue, lane, now_ns, error) : 0;
}

/* Let those through whose events have occurred. More than the oldest may have: streams differ. */
static int open_gate(struct device_queue *queue, unsigned gate, uint64_t now_ns,
                     struct error *error)
{
    struct progress_copy copy;
    struct device_arrival *arrival, *next;
    int moved = 0;
    DL_FOREACH_SAFE(queue->gates[gate], arrival, next)
    {
        int done = device_event_done(queue->device, arrival->event, error);
        if (done < 0)
            return done;
        if (done == 0)
            continue;
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

static int land_done(struct device_queue *queue, enum device_lane lane, uint64_t now_ns,
                     struct error *error)
{
    struct device_flight *flight;
    int done, moved = 0;
    while ((flight = queue->flights[lane])) {
        done = device_event_done(queue->device, flight->event, error);
        if (done < 0)
            return done;
        if (done == 0)
            break;
        DL_DELETE(queue->flights[lane], flight);
        land(queue, flight, now_ns);
        moved = 1;
    }
    return moved;
}

/* Look at all that is behind a bell, and have it ring for the oldest that remains. */
static int look(struct device_queue *queue, unsigned bell, uint64_t now_ns, struct error *error)
{
    int moved = bell < DEVICE_LANES ? land_done(queue, (enum device_lane)bell, now_ns, error)
                                    : open_gate(queue, bell - DEVICE_BELL_GATE, now_ns, error);
    if (moved < 0)
        return moved;
    void *oldest = NULL;
    if (bell < DEVICE_LANES && queue->flights[bell])
        oldest = queue->flights[bell]->event;
    else if (bell >= DEVICE_BELL_GATE && queue->gates[bell - DEVICE_BELL_GATE])
        oldest = queue->gates[bell - DEVICE_BELL_GATE]->event;
    int code = oldest ? device_queue_ring(queue, bell, oldest, error) : 0;
    return code < 0 ? code : moved;
}

int device_queue_poll(struct device_queue *queue, uint64_t now_ns, struct error *error)
{
    bool look_now = device_queue_busy(queue) && now_ns >= queue->look_ns;
    if (!look_now && queue->bells == 0)
        return 0;
    uint32_t rung = device_rung(queue->device);
    queue->bells &= ~rung;
    if (look_now)
        queue->look_ns = now_ns + DEVICE_LOOK_NS;
    int moved = 0;
    for (unsigned bell = 0; bell < DEVICE_BELL_WAITS; bell++) {
        if (!look_now && !(rung & 1u << bell))
            continue;
        int code = look(queue, bell, now_ns, error);
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
