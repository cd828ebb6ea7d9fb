/* An exchange with a job in it, and everybody around it hostile: nodes that send any header with
 * any payload, ranks that submit any entry, peers that go and come, groups that open and end
 * meanwhile. The input is a list of steps. After each, the invariants of server/exchange/exchange.h
 * hold; in the end, whatever happened, every buffer and arena comes back (fixture_destroy). */
#include "tests/fuzz/fuzz.h"
#include "tests/lib/server/exchange_fixture.h"

#define STEPS_MAX 200
#define FULL (FIXTURE_QUEUE / 2) /* above this, what waits in the fixture is done first */
#define PAYLOAD_BYTES 256        /* of a chunk */

struct input {
    const uint8_t *data;
    size_t bytes;
};

static uint8_t input_byte(struct input *input)
{
    if (input->bytes == 0)
        return 0;
    input->bytes--;
    return *input->data++;
}

/* Take up to `bytes` bytes, as many as are there; the others stay in `to` as they are. */
static void input_take(struct input *input, void *to, size_t bytes)
{
    if (bytes > input->bytes)
        bytes = input->bytes;
    if (bytes > 0)
        memcpy(to, input->data, bytes);
    input->data += bytes;
    input->bytes -= bytes;
}

/* This node with ranks and chunks of its own; with one rank and all chunks elsewhere; with chunks
 * and no rank; receives that are shared. */
static const struct fixture_options shapes[] = {
    {.self = 0, .nodes = 2, .ranks = 4, .rank_nodes = {0, 0, 1, 1}, .weights = {1, 1}},
    {.self = 0, .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {0, 1, 1}},
    {.self = 0, .nodes = 3, .ranks = 2, .rank_nodes = {1, 2}, .weights = {1, 0, 0}},
    {.self = 1,
     .nodes = 3,
     .ranks = 3,
     .rank_nodes = {0, 1, 2},
     .weights = {1, 2, 1},
     .shared_receives = true},
    {.self = 0, .nodes = 2, .ranks = 3, .rank_nodes = {0, 0, 0}, .weights = {1, 1}},
    /* with recovery: the root of group 0, and another node */
    {.self = 0,
     .nodes = 2,
     .ranks = 4,
     .rank_nodes = {0, 0, 1, 1},
     .weights = {1, 1},
     .recovery = true},
    {.self = 0,
     .nodes = 3,
     .ranks = 3,
     .rank_nodes = {0, 1, 2},
     .weights = {0, 1, 1},
     .recovery = true},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct attack {
    struct fixture *fixture;
    struct input input;
    bool stopped[FIXTURE_RANKS]; /* it has submitted nonsense: its ring is not read any more */
};

/* --- peers ------------------------------------------------------------------------------------ */

static uint32_t attack_peer(struct attack *attack)
{
    const struct fixture_options *options = &attack->fixture->options;
    uint32_t node = input_byte(&attack->input) % options->nodes;
    return node == options->self ? (node + 1) % options->nodes : node;
}

static void attack_reconnect(struct attack *attack, uint32_t node)
{
    fixture_peer_down(attack->fixture, node);
    fixture_run(attack->fixture);
    exchange_peer_up(attack->fixture->exchange, node, fixture_receive_token(node),
                     fixture_send_token(node));
    fixture_run(attack->fixture);
}

/* Deliver a message, and do with the answer what the engine does: a peer that has sent nonsense is
 * disconnected. */
static void attack_send(struct attack *attack, uint32_t node, const uint8_t *message,
                        uint32_t bytes)
{
    struct fixture *fixture = attack->fixture;
    if (fixture_posted(fixture, node) == 0)
        return;
    uint32_t at = 0;
    while (!fixture->options.shared_receives && fixture->posted[at]->peer != node)
        at++;
    struct buffer *buffer = fixture->posted[at];
    memmove(&fixture->posted[at], &fixture->posted[at + 1],
            (--fixture->posted_count - at) * sizeof(buffer));
    memcpy(buffer->data, message, bytes);
    uint32_t from = UINT32_MAX;
    int result =
        exchange_receive(fixture->exchange, fixture->options.shared_receives ? UINT32_MAX : node,
                         buffer, bytes, fixture->now_ns, &from, &fixture->error);
    fixture_run(fixture);
    if (result == 0)
        return;
    FUZZ_REQUIRE(result == ERR_PROTOCOL && fixture->error.text[0]);
    if (from < fixture->options.nodes)
        attack_reconnect(attack, from);
}

/* A header that would do, but for one field, and as many bytes as the input says. */
static void attack_header(struct attack *attack)
{
    static const uint64_t counts[] = {64, 128, 1, 100, 0, 1000};
    struct input *input = &attack->input;
    uint32_t node = attack_peer(attack);
    uint8_t shape = input_byte(input);
    struct wire_header header =
        fixture_header(node, input_byte(input) % (WIRE_DELIVERED + 1), input_byte(input) % 6,
                       input_byte(input) % 6, counts[shape % (sizeof(counts) / sizeof(counts[0]))]);
    uint8_t field = input_byte(input);
    uint64_t value = 0;
    if (field > 0)
        input_take(input, &value, field % 2 ? 1 : 8);
    switch (field / 2) {
    case 0:
        break;
    case 1:
        header.token ^= value;
        break;
    case 2:
        header.job ^= value;
        break;
    case 3:
        header.sequence = value;
        break;
    case 4:
        header.chunk = (uint32_t)value;
        break;
    case 5:
        header.ask.kind = (uint8_t)value;
        break;
    case 6:
        header.ask.dtype = (uint8_t)value;
        break;
    case 7:
        header.ask.op = (uint8_t)value;
        break;
    case 8:
        header.ask.root = (uint32_t)value;
        break;
    case 9:
        header.ask.count = value;
        break;
    case 10:
        header.ask.block = (uint32_t)value;
        break;
    case 11:
        header.group = (uint32_t)value;
        break;
    case 12:
        header.status = (int16_t)value;
        break;
    case 13: /* a send between two ranks */
        header.sequence = WIRE_SEND_SEQUENCE | value;
        header.ask = (struct wire_ask){
            .kind = COLLECTIVE_SEND, .dtype = DTYPE_F32, .count = 64, .block = shape % 8u};
        break;
    default: /* another collective */
        header.ask.kind = (uint8_t)(field % 12);
        header.ask.block = (uint32_t)(value % 8);
        break;
    }
    uint8_t message[WIRE_HEADER_BYTES + PAYLOAD_BYTES] = {0};
    header.payload_bytes = shape % 4 == 3 ? input_byte(input) : PAYLOAD_BYTES;
    if (header.ask.count * sizeof(float) < PAYLOAD_BYTES && shape % 4 != 3)
        header.payload_bytes = (uint32_t)(header.ask.count * sizeof(float));
    wire_encode_header(message, &header);
    input_take(input, message + WIRE_HEADER_BYTES, input_byte(input) % PAYLOAD_BYTES);
    attack_send(attack, node, message, WIRE_HEADER_BYTES + header.payload_bytes);
}

static void attack_raw(struct attack *attack)
{
    uint8_t message[WIRE_HEADER_BYTES + PAYLOAD_BYTES] = {0};
    uint32_t node = attack_peer(attack);
    uint32_t bytes = input_byte(&attack->input);
    input_take(&attack->input, message, bytes);
    attack_send(attack, node, message, bytes);
}

/* --- ranks ------------------------------------------------------------------------------------ */

static void attack_submit(struct attack *attack, uint32_t rank, const struct arena_submission *it)
{
    struct fixture *fixture = attack->fixture;
    if (!fixture->attached[rank] || attack->stopped[rank])
        return;
    if (fixture_submit(fixture, rank, it) == 0)
        return;
    FUZZ_REQUIRE(fixture->error.text[0]);
    attack->stopped[rank] = true;
}

static uint32_t attack_rank(struct attack *attack)
{
    const struct fixture_options *options = &attack->fixture->options;
    uint32_t rank = input_byte(&attack->input) % options->ranks;
    while (options->rank_nodes[rank] != options->self && rank + 1 < options->ranks)
        rank++;
    return rank;
}

static void attack_ask(struct attack *attack)
{
    static const uint64_t counts[] = {64, 128, 1, 100, 0, 1000};
    struct input *input = &attack->input;
    uint32_t rank = attack_rank(attack);
    if (!attack->fixture->attached[rank])
        return;
    struct arena_submission it =
        fixture_ask(attack->fixture, rank, input_byte(input) % 6, counts[input_byte(input) % 6]);
    it.flags = input_byte(input) % 8;
    uint8_t what = input_byte(input);
    if (what % 4 == 1)
        it.kind = input_byte(input) % 16;
    if (what % 4 == 2)
        it.root = input_byte(input);
    if (what & 4)
        it.block = input_byte(input);
    if (what & 8)
        it.priority = input_byte(input);
    if (what & 16)
        input_take(input, &it.in_offset, sizeof(it.in_offset));
    if (what & 32)
        it.sequence |= WIRE_SEND_SEQUENCE;
    if (what & 64)
        it.group = input_byte(input) % 3;
    attack_submit(attack, rank, &it);
}

static void attack_hand_over(struct attack *attack)
{
    struct input *input = &attack->input;
    uint32_t rank = attack_rank(attack);
    if (!attack->fixture->attached[rank])
        return;
    uint64_t sequence = input_byte(input) % 6;
    struct arena_submission it = {
        .type = ARENA_CHUNK,
        .request = 100 + sequence,
        .sequence = sequence,
        .chunk = input_byte(input) % 20,
        .in_offset = fixture_offset(attack->fixture, rank, input_byte(input)),
    };
    attack_submit(attack, rank, &it);
}

static void attack_entry(struct attack *attack)
{
    uint32_t rank = attack_rank(attack);
    struct arena_submission it = {0};
    input_take(&attack->input, &it, sizeof(it));
    attack_submit(attack, rank, &it);
}

/* --- the rest --------------------------------------------------------------------------------- */

static void attack_group(struct attack *attack)
{
    struct exchange *exchange = attack->fixture->exchange;
    struct error error;
    struct input *input = &attack->input;
    uint8_t what = input_byte(input);
    uint32_t group = input_byte(input) % 3;
    uint32_t ranks[] = {input_byte(input) % 5, input_byte(input) % 5};
    switch (what % 5) {
    case 0:
        if (exchange_group_open(exchange, FIXTURE_JOB, group, ranks, 1 + what / 128, &error) != 0)
            FUZZ_REQUIRE(error.text[0]);
        break;
    case 1:
        exchange_group_close(exchange, FIXTURE_JOB, group);
        break;
    case 2:
        exchange_group_stop(exchange, FIXTURE_JOB, group);
        break;
    case 3:
        exchange_rank_left(exchange, FIXTURE_JOB, group, ranks[0], ranks[1]);
        break;
    default:
        exchange_late_query(exchange, FIXTURE_JOB, group, ranks[0]);
        break;
    }
    fixture_run(attack->fixture);
}

static void attack_end(struct attack *attack)
{
    struct fixture *fixture = attack->fixture;
    uint32_t rank = attack_rank(attack);
    switch (input_byte(&attack->input) % 3) {
    case 0:
        if (fixture->attached[rank] && !attack->stopped[rank]) {
            attack->stopped[rank] = true;
            exchange_detach(fixture->exchange, &fixture->workers[rank]);
        }
        break;
    case 1:
        attack_reconnect(attack, attack_peer(attack));
        break;
    default:
        exchange_job_fail(fixture->exchange, FIXTURE_JOB);
        break;
    }
    fixture_run(fixture);
}

static void attack_return(struct attack *attack)
{
    struct fixture *fixture = attack->fixture;
    uint8_t n = input_byte(&attack->input);
    if (n % 2 && fixture->task_count > 0)
        fixture_reduce(fixture, n % fixture->task_count);
    else if (fixture->send_count > 0)
        fixture_sent(fixture, n % fixture->send_count);
}

/* The fixture keeps what nobody asks for; it has room for some hundreds. */
static void attack_make_room(struct fixture *fixture)
{
    while (fixture->task_count > FULL)
        fixture_reduce(fixture, 0);
    while (fixture->send_count > FULL)
        fixture_sent(fixture, 0);
    fixture->completion_count = 0;
    for (uint32_t i = 0; i < fixture->event_count; i++)
        engine_event_free(fixture->events[i]);
    fixture->event_count = 0;
}

static void attack_step(struct attack *attack)
{
    struct fixture *fixture = attack->fixture;
    switch (input_byte(&attack->input) % 9) {
    case 0:
    case 1:
        attack_header(attack);
        break;
    case 2:
        attack_raw(attack);
        break;
    case 3:
        attack_ask(attack);
        break;
    case 4:
        attack_hand_over(attack);
        break;
    case 5:
        attack_entry(attack);
        break;
    case 6:
        attack_return(attack);
        break;
    case 7:
        attack_group(attack);
        break;
    default:
        if (input_byte(&attack->input) % 4 == 0) {
            attack_end(attack);
            break;
        }
        fixture->now_ns += 500;
        exchange_tick(fixture->exchange, fixture->now_ns);
        fixture_run(fixture);
        break;
    }
    attack_make_room(fixture);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct attack attack = {.input = {data, size}};
    struct fixture_options options = shapes[input_byte(&attack.input) % SHAPES];
    attack.fixture = fixture_create(&options);
    for (unsigned i = 0; i < STEPS_MAX && attack.input.bytes > 0; i++)
        attack_step(&attack);
    attack_make_room(attack.fixture);
    fixture_destroy(attack.fixture);
    return 0;
}
