/* Sealed messages: what opens, and that nothing else does. The last test takes a number of frames
 * as an argument: `test_seal 1000000`. */
#include "common/auth/seal.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/openssl_memory.h"
#include "tests/lib/suite.h"

#define HEADER_BYTES 64u
#define ROOM_BYTES 4096u

static const uint8_t key_a[SEAL_KEY_BYTES] = "the key from a to b, 32 bytes..";
static const uint8_t key_b[SEAL_KEY_BYTES] = "the key from b to a, 32 bytes..";

static struct seal *sealer, *opener;
static uint8_t message[ROOM_BYTES], plain[ROOM_BYTES];

static void setup(void)
{
    struct error error = {0};
    ck_assert_msg(seal_create(&sealer, key_a, &error) == 0, "%s", error.text);
    ck_assert_msg(seal_create(&opener, key_a, &error) == 0, "%s", error.text);
    for (size_t i = 0; i < sizeof(plain); i++)
        plain[i] = (uint8_t)(i * 7 + i / 256);
}

static void teardown(void)
{
    seal_destroy(sealer);
    seal_destroy(opener);
    seal_destroy(NULL);
}

/* The header and payload are the first bytes of `plain`. Returns the length. */
static uint32_t seal_plain(struct seal *seal, uint64_t sequence, uint32_t payload_bytes)
{
    memcpy(message, plain, HEADER_BYTES);
    ck_assert_int_eq(
        seal_message(seal, sequence, message, HEADER_BYTES, plain + HEADER_BYTES, payload_bytes),
        0);
    return HEADER_BYTES + payload_bytes + SEAL_TRAILER_BYTES;
}

static void expect_plain(uint32_t bytes)
{
    ck_assert_mem_eq(message, plain, bytes - SEAL_TRAILER_BYTES);
}

static const uint32_t sizes[] = {0, 1, 15, 16, 17, 63, 64, 100, 1000, 3000};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

START_TEST(what_was_sealed_opens)
{
    uint32_t payload_bytes = sizes[_i];
    for (uint64_t sequence = 0; sequence < 3; sequence++) {
        uint32_t bytes = seal_plain(sealer, sequence, payload_bytes);
        ck_assert_mem_eq(message, plain, HEADER_BYTES); /* in the clear */
        if (payload_bytes >= 16)
            ck_assert_mem_ne(message + HEADER_BYTES, plain + HEADER_BYTES, payload_bytes);
        ck_assert_uint_eq(seal_sequence(message, bytes), sequence);
        ck_assert_int_eq(seal_open(opener, message, HEADER_BYTES, bytes), 0);
        expect_plain(bytes);
    }
}
END_TEST

START_TEST(a_message_is_sealed_where_it_lies)
{
    uint32_t bytes = seal_plain(sealer, 9, 777);
    uint8_t elsewhere[ROOM_BYTES];
    memcpy(elsewhere, message, bytes);
    memcpy(message, plain, HEADER_BYTES + 777);
    ck_assert_int_eq(seal_message(sealer, 9, message, HEADER_BYTES, message + HEADER_BYTES, 777),
                     0);
    ck_assert_mem_eq(message, elsewhere, bytes);
}
END_TEST

/* Another implementation sealed the known messages: HMAC of Python's library, AES-GCM of its
 * cryptography. */
START_TEST(messages_are_as_the_protocol_says)
{
    static const struct {
        uint64_t sequence;
        uint8_t sealed[20 + SEAL_TAG_BYTES];
    } known[] = {
        {1, {0x06, 0x7a, 0xf7, 0xb3, 0x1d, 0xa9, 0x48, 0x07, 0xeb, 0xf9, 0x39, 0x10,
             0xce, 0x63, 0x45, 0x3a, 0x82, 0x3c, 0xc7, 0x1e, 0xaa, 0x67, 0xf3, 0xa7,
             0x7a, 0xc1, 0x04, 0x4a, 0xcf, 0x85, 0x93, 0x06, 0x65, 0x28, 0xd5, 0x02}},
        {3 * 4096 + 5, {0x1f, 0x6e, 0x0c, 0xee, 0xac, 0x34, 0x34, 0x88, 0x03, 0xe5, 0x3b, 0xf7,
                        0xb8, 0x3a, 0x46, 0xaf, 0xbc, 0x90, 0xa0, 0xcb, 0x65, 0xd6, 0x5d, 0xba,
                        0x2f, 0xa2, 0xa3, 0x2a, 0xc2, 0x3f, 0x45, 0xca, 0xc0, 0x67, 0xc3, 0x4c}},
    };
    for (int i = 0; i < 2; i++) {
        uint32_t bytes = seal_plain(sealer, known[i].sequence, 20);
        ck_assert_mem_eq(message + HEADER_BYTES, known[i].sealed, 20);
        ck_assert_mem_eq(message + bytes - SEAL_TAG_BYTES, known[i].sealed + 20, SEAL_TAG_BYTES);
    }
}
END_TEST

START_TEST(no_two_messages_look_alike)
{
    uint8_t first[ROOM_BYTES];
    uint32_t bytes = seal_plain(sealer, 1, 64);
    memcpy(first, message, bytes);
    seal_plain(sealer, 2, 64);
    ck_assert_mem_ne(first + HEADER_BYTES, message + HEADER_BYTES, 64);
    ck_assert_mem_ne(first + bytes - SEAL_TAG_BYTES, message + bytes - SEAL_TAG_BYTES,
                     SEAL_TAG_BYTES);
    seal_plain(sealer, 1 + SEAL_EPOCH_MESSAGES, 64);
    ck_assert_mem_ne(first + HEADER_BYTES, message + HEADER_BYTES, 64);
}
END_TEST

/* Whichever bit is flipped: of header, payload, sequence or tag. */
START_TEST(a_flipped_bit_is_found)
{
    uint32_t bytes = seal_plain(sealer, 5, 40);
    uint8_t sealed[ROOM_BYTES];
    memcpy(sealed, message, bytes);
    for (uint32_t bit = 0; bit < bytes * 8; bit++) {
        memcpy(message, sealed, bytes);
        message[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_int_eq(seal_open(opener, message, HEADER_BYTES, bytes), ERR_PROTOCOL);
    }
    memcpy(message, sealed, bytes);
    ck_assert_int_eq(seal_open(opener, message, HEADER_BYTES, bytes), 0); /* and nothing stays */
    expect_plain(bytes);
}
END_TEST

START_TEST(a_cut_message_is_found)
{
    uint32_t bytes = seal_plain(sealer, 5, 200);
    uint8_t sealed[ROOM_BYTES];
    memcpy(sealed, message, bytes);
    for (uint32_t cut = HEADER_BYTES + SEAL_TRAILER_BYTES; cut < bytes; cut++) {
        memcpy(message, sealed, bytes);
        ck_assert_int_eq(seal_open(opener, message, HEADER_BYTES, cut), ERR_PROTOCOL);
    }
}
END_TEST

START_TEST(another_key_does_not_open)
{
    struct seal *other;
    ck_assert_int_eq(seal_create(&other, key_b, NULL), 0);
    uint32_t bytes = seal_plain(sealer, 0, 100);
    ck_assert_int_eq(seal_open(other, message, HEADER_BYTES, bytes), ERR_PROTOCOL);
    seal_destroy(other);
}
END_TEST

/* Whoever opens may go back and forth between epochs, and threads have not seen them all. */
START_TEST(keys_change_with_the_epoch)
{
    static const uint64_t sequences[] = {
        0,
        SEAL_EPOCH_MESSAGES - 1,
        SEAL_EPOCH_MESSAGES,
        SEAL_EPOCH_MESSAGES + 1,
        SEAL_EPOCH_MESSAGES - 2,
        1000 * (uint64_t)SEAL_EPOCH_MESSAGES,
        UINT64_MAX,
    };
    for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++) {
        uint32_t bytes = seal_plain(sealer, sequences[i], 33);
        ck_assert_uint_eq(seal_sequence(message, bytes), sequences[i]);
        ck_assert_int_eq(seal_open(opener, message, HEADER_BYTES, bytes), 0);
        expect_plain(bytes);
    }
}
END_TEST

/* The largest chunks of data.chunk_bytes (config/reference.md), the header, and a block for the
 * tag; RFC 8446, 5.5 has 2^34.5, which is 2^34 and some. */
START_TEST(a_key_seals_fewer_blocks_than_it_may)
{
    uint64_t blocks = (16u << 20) / 16 + HEADER_BYTES / 16 + 2;
    ck_assert_uint_lt(blocks * SEAL_EPOCH_MESSAGES, UINT64_C(1) << 33);
}
END_TEST

/* A new epoch's key takes memory. Without it nothing is sealed, and what came is not called
 * altered; both are done when there is memory again. */
START_TEST(memory_that_is_refused_alters_nothing)
{
    static const uint64_t sequences[] = {SEAL_EPOCH_MESSAGES, 5 * SEAL_EPOCH_MESSAGES, 1};
    for (int i = 0; i < 3; i++) {
        uint8_t sealed[ROOM_BYTES] = {0};
        memcpy(sealed, plain, HEADER_BYTES);
        openssl_memory_refuse(true);
        int code =
            seal_message(sealer, sequences[i], sealed, HEADER_BYTES, plain + HEADER_BYTES, 100);
        openssl_memory_refuse(false);
        ck_assert_int_eq(code, ERR_MEMORY);
        ck_assert_mem_eq(sealed + HEADER_BYTES, (uint8_t[100 + SEAL_TRAILER_BYTES]){0},
                         100 + SEAL_TRAILER_BYTES);
        uint32_t bytes = seal_plain(sealer, sequences[i], 100);
        memcpy(sealed, message, bytes);
        openssl_memory_refuse(true);
        code = seal_open(opener, message, HEADER_BYTES, bytes);
        openssl_memory_refuse(false);
        ck_assert_int_eq(code, ERR_MEMORY);
        ck_assert_mem_eq(message, sealed, bytes);
        ck_assert_int_eq(seal_open(opener, message, HEADER_BYTES, bytes), 0);
        expect_plain(bytes);
    }
}
END_TEST

/* The key of before is not used for the epoch that there was no memory for, nor the other way
 * round. */
START_TEST(the_epoch_before_goes_on)
{
    uint32_t bytes = seal_plain(sealer, SEAL_EPOCH_MESSAGES - 1, 100);
    uint8_t sealed[ROOM_BYTES];
    memcpy(sealed, message, bytes);
    openssl_memory_refuse(true);
    int code = seal_message(sealer, SEAL_EPOCH_MESSAGES, message, HEADER_BYTES, plain, 100);
    openssl_memory_refuse(false);
    ck_assert_int_eq(code, ERR_MEMORY);
    seal_plain(sealer, SEAL_EPOCH_MESSAGES - 1, 100);
    ck_assert_mem_eq(message, sealed, bytes);
}
END_TEST

START_TEST(a_seal_without_memory_says_so)
{
    struct error error = {0};
    struct seal *none = NULL;
    openssl_memory_refuse(true);
    int code = seal_create(&none, key_a, &error);
    openssl_memory_refuse(false);
    ck_assert_int_eq(code, ERR_MEMORY);
    ck_assert_ptr_null(none);
    ck_assert_msg(strstr(error.text, "no memory") != NULL, "%s", error.text);
}
END_TEST

/* --- which sequences are taken ---------------------------------------------------------------- */

START_TEST(in_order_only_the_next_is_taken)
{
    struct seal_window window = {.ordered = true};
    ck_assert_int_eq(seal_window_take(&window, 1), SEAL_DISORDERED);
    for (uint64_t i = 0; i < 100; i++) {
        ck_assert_int_eq(seal_window_take(&window, i), SEAL_TAKEN);
        ck_assert_int_eq(seal_window_take(&window, i), SEAL_REPEATED);
        ck_assert_int_eq(seal_window_take(&window, i + 2), SEAL_DISORDERED);
    }
    ck_assert_int_eq(seal_window_take(&window, UINT64_MAX), SEAL_DISORDERED);
    ck_assert_int_eq(seal_window_take(&window, 0), SEAL_REPEATED);
}
END_TEST

START_TEST(datagrams_are_taken_once_each)
{
    struct seal_window window = {.ordered = false};
    const uint64_t most = SEAL_WINDOW_MESSAGES;
    ck_assert_int_eq(seal_window_take(&window, 5), SEAL_TAKEN);
    ck_assert_int_eq(seal_window_take(&window, 3), SEAL_TAKEN);
    ck_assert_int_eq(seal_window_take(&window, 5), SEAL_REPEATED);
    ck_assert_int_eq(seal_window_take(&window, 3), SEAL_REPEATED);
    ck_assert_int_eq(seal_window_take(&window, 4), SEAL_TAKEN);
    ck_assert_uint_eq(window.oldest, 0);
    ck_assert_uint_eq(window.next, 6);
    ck_assert_int_eq(seal_window_take(&window, most), SEAL_DISORDERED); /* 0 has not come */
    ck_assert_int_eq(seal_window_take(&window, most - 1), SEAL_TAKEN);
    for (uint64_t i = 0; i < 3; i++)
        ck_assert_int_eq(seal_window_take(&window, i), SEAL_TAKEN);
    ck_assert_uint_eq(window.oldest, 6);
    ck_assert_int_eq(seal_window_take(&window, 6 + most), SEAL_DISORDERED);
    ck_assert_int_eq(seal_window_take(&window, 5 + most), SEAL_TAKEN);
    ck_assert_int_eq(seal_window_take(&window, 5 + most), SEAL_REPEATED);
    ck_assert_int_eq(seal_window_take(&window, 5), SEAL_REPEATED);
    ck_assert_int_eq(seal_window_take(&window, 6), SEAL_TAKEN);
    ck_assert_int_eq(seal_window_take(&window, UINT64_MAX), SEAL_DISORDERED);
}
END_TEST

/* Whoever looks first takes nothing by it. */
START_TEST(a_look_takes_nothing)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        struct seal_window window = {.ordered = ordered};
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(seal_window_check(&window, 0), SEAL_TAKEN);
        ck_assert_int_eq(seal_window_check(&window, 1), ordered ? SEAL_DISORDERED : SEAL_TAKEN);
        ck_assert_int_eq(seal_window_take(&window, 0), SEAL_TAKEN);
        ck_assert_int_eq(seal_window_check(&window, 0), SEAL_REPEATED);
        ck_assert_int_eq(seal_window_check(&window, 1), SEAL_TAKEN);
    }
}
END_TEST

/* Against a list of all that were taken, round the window several times. In each round all come in
 * an order of its own, some again and again; some that are too early come again later. */
START_TEST(the_window_agrees_with_a_list)
{
    enum { COUNT = 40000 };
    struct seal_window window = {.ordered = false};
    bool *taken = calloc(COUNT, sizeof(*taken));
    uint64_t oldest = 0, next = 0;
    long counts[SEAL_REFUSALS] = {0};
    srand48(7);
    for (int i = 0; oldest < COUNT - 10000; i++) {
        int64_t sequence = (int64_t)oldest + (int64_t)(drand48() * 10000) - 1000;
        if (i % 5 == 0)
            sequence = (int64_t)oldest;
        if (sequence < 0)
            continue;
        uint64_t it = (uint64_t)sequence;
        enum seal_refusal expected = SEAL_TAKEN;
        if (it >= oldest + SEAL_WINDOW_MESSAGES)
            expected = SEAL_DISORDERED;
        else if (taken[it])
            expected = SEAL_REPEATED;
        counts[expected]++;
        ck_assert_int_eq(seal_window_check(&window, it), expected);
        ck_assert_int_eq(seal_window_take(&window, it), expected);
        if (expected != SEAL_TAKEN)
            continue;
        taken[it] = true;
        next = it + 1 > next ? it + 1 : next;
        while (taken[oldest])
            oldest++;
        ck_assert_uint_eq(window.oldest, oldest);
        ck_assert_uint_eq(window.next, next);
    }
    ck_assert_int_gt(counts[SEAL_DISORDERED], 100);
    ck_assert_int_gt(counts[SEAL_REPEATED], 100);
    free(taken);
}
END_TEST

START_TEST(refusals_have_names)
{
    ck_assert_str_eq(seal_refusal_name(SEAL_SHORT), "short");
    ck_assert_str_eq(seal_refusal_name(SEAL_ALTERED), "altered");
    ck_assert_str_eq(seal_refusal_name(SEAL_REPEATED), "repeated");
    ck_assert_str_eq(seal_refusal_name(SEAL_DISORDERED), "disordered");
    ck_assert_str_eq(seal_refusal_name(SEAL_UNKEYED), "unkeyed");
    ck_assert_str_eq(seal_refusal_name(SEAL_REFUSALS), "unknown");
}
END_TEST

/* --- a receiver under attack ------------------------------------------------------------------ */

/* Receive a message as a receiver does: the window, then the key. */
static enum seal_refusal receive(struct seal_window *window, struct seal *seal, uint8_t *bytes,
                                 uint32_t length)
{
    if (length < HEADER_BYTES + SEAL_TRAILER_BYTES)
        return SEAL_SHORT;
    enum seal_refusal refusal = seal_window_take(window, seal_sequence(bytes, length));
    if (refusal != SEAL_TAKEN)
        return refusal;
    return seal_open(seal, bytes, HEADER_BYTES, length) == 0 ? SEAL_TAKEN : SEAL_ALTERED;
}

/* One frame of an attack, made of the next message, at `sequence`. Returns its length. */
static uint32_t attack(int kind, uint64_t sequence, struct seal *foreign)
{
    uint32_t payload_bytes = (uint32_t)(drand48() * 200);
    uint32_t bytes = seal_plain(sealer, sequence, payload_bytes);
    uint32_t at = (uint32_t)(drand48() * bytes);
    switch (kind) {
    case 0: /* flipped */
        message[at] ^= (uint8_t)(1 << (int)(drand48() * 8));
        return bytes;
    case 1: /* cut */
        return at;
    case 2: /* repeated: one that was taken */
        return seal_plain(sealer, (uint64_t)(drand48() * (double)sequence), payload_bytes);
    case 3: /* out of its order */
        return seal_plain(sealer, sequence + 1 + (uint64_t)(drand48() * 1000), payload_bytes);
    case 4: /* of another connection, in its place */
        return seal_plain(foreign, sequence, payload_bytes);
    default: /* the header of another message */
        message[at % HEADER_BYTES] ^= 0xff;
        return bytes;
    }
}

static long frame_count = 20000;

/* The window is put back after each attack, where an engine ends the connection: so every frame
 * meets a receiver that waits for just that message. */
START_TEST(no_attack_opens)
{
    struct seal_window window = {.ordered = true};
    struct seal *foreign;
    long counts[SEAL_REFUSALS] = {0}, sum = 0;
    uint64_t sequence = 0;
    srand48(11);
    ck_assert_int_eq(seal_create(&foreign, key_b, NULL), 0);
    for (; sequence < 10; sequence++) {
        uint32_t bytes = seal_plain(sealer, sequence, 20);
        ck_assert_int_eq(receive(&window, opener, message, bytes), SEAL_TAKEN);
    }
    for (long i = 0; i < frame_count; i++) {
        struct seal_window before = window;
        uint32_t bytes = attack((int)(i % 6), sequence, foreign);
        enum seal_refusal refusal = receive(&window, opener, message, bytes);
        ck_assert_msg(refusal != SEAL_TAKEN, "frame %ld was taken", i);
        counts[refusal]++;
        window = before;
        if (i % 100 == 0) { /* the true one is still taken */
            bytes = seal_plain(sealer, sequence++, 50);
            ck_assert_int_eq(receive(&window, opener, message, bytes), SEAL_TAKEN);
            expect_plain(bytes);
        }
    }
    for (int i = 0; i < SEAL_REFUSALS; i++)
        sum += counts[i];
    ck_assert_int_eq(sum, frame_count);
    for (int i = SEAL_SHORT; i <= SEAL_DISORDERED; i++)
        ck_assert_int_gt(counts[i], frame_count / 20);
    seal_destroy(foreign);
}
END_TEST

static TCase *messages(void)
{
    TCase *tests = tcase_create("messages");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, what_was_sealed_opens, 0, SIZES);
    tcase_add_test(tests, a_message_is_sealed_where_it_lies);
    tcase_add_test(tests, messages_are_as_the_protocol_says);
    tcase_add_test(tests, no_two_messages_look_alike);
    tcase_add_test(tests, a_flipped_bit_is_found);
    tcase_add_test(tests, a_cut_message_is_found);
    tcase_add_test(tests, another_key_does_not_open);
    tcase_add_test(tests, keys_change_with_the_epoch);
    tcase_add_test(tests, a_key_seals_fewer_blocks_than_it_may);
    tcase_add_test(tests, memory_that_is_refused_alters_nothing);
    tcase_add_test(tests, the_epoch_before_goes_on);
    tcase_add_test(tests, a_seal_without_memory_says_so);
    tcase_set_timeout(tests, 600);
    tcase_add_test(tests, no_attack_opens);
    return tests;
}

static TCase *windows(void)
{
    TCase *tests = tcase_create("windows");
    tcase_add_test(tests, in_order_only_the_next_is_taken);
    tcase_add_test(tests, datagrams_are_taken_once_each);
    tcase_add_test(tests, a_look_takes_nothing);
    tcase_add_test(tests, the_window_agrees_with_a_list);
    tcase_add_test(tests, refusals_have_names);
    return tests;
}

int main(int argc, char **argv)
{
    if (!openssl_memory_begin())
        return EXIT_FAILURE;
    if (argc > 1)
        frame_count = strtol(argv[1], NULL, 10);
    Suite *suite = suite_create("seal");
    suite_add_tcase(suite, messages());
    suite_add_tcase(suite, windows());
    return suite_main(suite);
}
