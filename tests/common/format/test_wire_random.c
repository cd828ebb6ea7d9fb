/* Data plane messages of any bytes: decoded as doc/protocol/data.md has it, or refused; never read
 * behind their end (the memory is as long as the message, for a sanitizer to see). */
#include "common/format/wire.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

#define ROUNDS 50000
#define SEEDS 4

static uint64_t random_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t number(const uint8_t *bytes, int size)
{
    uint64_t value = 0;
    while (size-- > 0)
        value = value << 8 | bytes[size];
    return value;
}

static bool are_zero(const uint8_t *m, int from, int to)
{
    while (from < to && m[from] == 0)
        from++;
    return from == to;
}

/* The rules once more, from the offsets in the header file. */
static bool is_right(const uint8_t *m, size_t length)
{
    if (length < 128 || memcmp(m, "SHOL", 4) != 0 || m[4] != WIRE_VERSION || m[5] < 1 || m[5] > 12)
        return false;
    int16_t status = (int16_t)number(m + 6, 2);
    return (m[5] == 4 ? status < 0 && status >= ERR_CONFIG : status == 0) &&
           number(m + 40, 4) == length - 128 && m[47] == 0 && (m[44] > 8 || m[31] < 0x80) &&
           (m[5] == 8 || m[5] == 9) == (number(m + 64, 4) == 0) && are_zero(m, 68, 72) &&
           are_zero(m, 76, 80) && are_zero(m, 96, 128);
}

static void check_decoded(const uint8_t *m, const struct wire_header *h)
{
    if (h->type != m[5] || (uint16_t)h->status != number(m + 6, 2) ||
        h->token != number(m + 8, 8) || h->job != number(m + 16, 8) ||
        h->sequence != number(m + 24, 8) || h->group != number(m + 32, 4) ||
        h->chunk != number(m + 36, 4) || h->payload_bytes != number(m + 40, 4) ||
        h->ask.kind != m[44] || h->ask.dtype != m[45] || h->ask.op != m[46] ||
        h->ask.root != number(m + 48, 4) || h->ask.identity != number(m + 72, 4) ||
        h->ask.count != number(m + 56, 8) || h->generation != number(m + 64, 4) ||
        h->number != number(m + 80, 8) || h->received != number(m + 88, 8))
        ck_abort_msg("a field is not what its bytes say");
}

START_TEST(messages_of_any_bytes)
{
    uint64_t state = (uint64_t)_i;
    int taken = 0, refused = 0;
    for (int round = 0; round < ROUNDS; round++) {
        size_t length =
            random_next(&state) % 4 ? 128 + random_next(&state) % 80 : random_next(&state) % 128;
        uint8_t *message = malloc(length ? length : 1);
        for (size_t i = 0; i < length; i++)
            message[i] = (uint8_t)random_next(&state);
        struct wire_header header = {.type = (uint8_t)(random_next(&state) % 6),
                                     .status = (int16_t)(random_next(&state) % 3 ? 0
                                                         : random_next(&state) % 2
                                                             ? random_next(&state)
                                                             : -(random_next(&state) % 16)),
                                     .payload_bytes = (uint32_t)(length - 128),
                                     .token = random_next(&state),
                                     .job = random_next(&state),
                                     .sequence = random_next(&state),
                                     .generation = random_next(&state) % 8 > 0,
                                     .number = random_next(&state),
                                     .received = random_next(&state),
                                     .ask = {.kind = (uint8_t)(random_next(&state) % 16),
                                             .count = random_next(&state),
                                             .identity = (uint32_t)random_next(&state)}};
        if (length >= 128 && random_next(&state) % 16) {
            wire_encode_header(message, &header);
            if (random_next(&state) % 2)
                message[random_next(&state) % 128] ^= (uint8_t)(1u << random_next(&state) % 8);
        }
        struct wire_header decoded, untouched;
        memset(&decoded, 0xee, sizeof(decoded));
        untouched = decoded;
        struct error error = {0};
        int code = wire_decode_header(message, length, &decoded, &error);
        ck_assert_int_eq(code, is_right(message, length) ? 0 : ERR_PROTOCOL);
        if (code == 0) {
            check_decoded(message, &decoded);
            taken++;
        } else {
            ck_assert(error.code == code && error.text[0] != '\0');
            ck_assert(memcmp(&decoded, &untouched, sizeof(decoded)) == 0);
            refused++;
        }
        free(message);
    }
    ck_assert_int_gt(taken, ROUNDS / 20);
    ck_assert_int_gt(refused, ROUNDS / 4);
}
END_TEST

START_TEST(rank_asks_of_any_bytes)
{
    uint64_t state = 500 + (uint64_t)_i;
    int taken = 0;
    for (int round = 0; round < ROUNDS; round++) {
        size_t length = random_next(&state) % 40;
        uint8_t *bytes = malloc(length ? length : 1);
        for (size_t i = 0; i < length; i++)
            bytes[i] =
                i == 7 || i >= 28 ? random_next(&state) % 16 == 0 : (uint8_t)random_next(&state);
        uint32_t rank = 77;
        struct wire_ask ask = {.count = 77};
        bool right = length >= 32 && bytes[7] == 0 && are_zero(bytes, 28, 32);
        ck_assert_int_eq(wire_decode_rank_ask(bytes, length, &rank, &ask),
                         right ? 0 : ERR_PROTOCOL);
        if (right) {
            taken++;
            ck_assert(rank == number(bytes, 4) && ask.kind == bytes[4] && ask.dtype == bytes[5] &&
                      ask.op == bytes[6] && ask.root == number(bytes + 8, 4) &&
                      ask.block == number(bytes + 12, 4) && ask.count == number(bytes + 16, 8) &&
                      ask.identity == number(bytes + 24, 4));
        } else {
            ck_assert(rank == 77 && ask.count == 77);
        }
        /* Whatever was asked for can be checked and put into words, at any length. */
        char text[160];
        size_t room = 1 + random_next(&state) % sizeof(text);
        memset(text, 'x', sizeof(text));
        wire_ask_text(&ask, 8, text, room);
        ck_assert(memchr(text, '\0', room) != NULL);
        struct error error = {0};
        int code = wire_ask_check(&ask, 1 + rank % 9, &error);
        ck_assert(code == 0 || (code == ERR_INVALID && error.text[0] != '\0'));
        free(bytes);
    }
    ck_assert_int_gt(taken, ROUNDS / 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire_random");
    TCase *random = tcase_create("random"); /* _i: the seed */
    tcase_set_timeout(random, 120);
    tcase_add_loop_test(random, messages_of_any_bytes, 0, SEEDS);
    tcase_add_loop_test(random, rank_asks_of_any_bytes, 0, SEEDS);
    suite_add_tcase(suite, random);
    return suite_main(suite);
}
