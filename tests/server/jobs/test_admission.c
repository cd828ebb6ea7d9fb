#include "server/jobs/admission.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

enum { NODES = 3, PLACES = 2048 };

static struct admission admission;
static struct admission_place places[PLACES];
static uint32_t used;
static uint64_t seed;

static void setup(void)
{
    ck_assert_int_eq(admission_init(&admission, NODES), 0);
    memset(places, 0, sizeof(places));
    used = 0;
    seed = 1;
}

static void teardown(void)
{
    admission_clear(&admission);
}

/* splitmix64 */
static uint64_t random_next(void)
{
    uint64_t z = (seed += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static struct admission_source v4(uint32_t address)
{
    struct admission_source source = {{[10] = 0xff, [11] = 0xff}};
    for (int i = 0; i < 4; i++)
        source.bytes[12 + i] = (uint8_t)(address >> (24 - 8 * i));
    return source;
}

static struct admission_source v6(uint8_t network, uint8_t host)
{
    return (struct admission_source){{0x20, 0x01, [7] = network, [15] = host}};
}

/* Enter as the daemon does: whoever loses its place leaves. Return that place, or NULL. */
static struct admission_place *enter(struct admission_place *place, struct admission_source source)
{
    struct admission_place *gone = admission_enter(&admission, place, &source, random_next());
    if (gone && gone != place) {
        ck_assert(gone->held && place->held);
        admission_leave(&admission, gone);
    }
    return gone;
}

static struct admission_place *enter_new(struct admission_source source)
{
    ck_assert_uint_lt(used, PLACES);
    return enter(&places[used++], source);
}

START_TEST(whoever_leaves_makes_room)
{
    struct admission_source source = v4(0x0a000001);
    ck_assert_ptr_null(enter_new(source));
    ck_assert_uint_eq(admission.strangers, 1);
    admission_leave(&admission, &places[0]);
    admission_leave(&admission, &places[0]);
    ck_assert_uint_eq(admission.strangers, 0);
    ck_assert_ptr_null(admission.places);
    for (int round = 0; round < 1000; round++) {
        ck_assert_ptr_null(enter(&places[0], source));
        admission_leave(&admission, &places[0]);
    }
}
END_TEST

START_TEST(one_source_has_few_places)
{
    for (uint32_t i = 0; i < ADMISSION_STRANGER_SOURCE_MAX; i++)
        ck_assert_ptr_null(enter_new(v4(0x0a000001)));
    for (int i = 0; i < 500; i++) {
        struct admission_place *gone = enter_new(v4(0x0a000001));
        ck_assert_ptr_nonnull(gone); /* one of its own */
        ck_assert_uint_eq(admission.strangers, ADMISSION_STRANGER_SOURCE_MAX);
    }
    ck_assert_ptr_null(enter_new(v4(0x0a000002)));
}
END_TEST

START_TEST(a_network_of_ipv6_is_one_source)
{
    for (uint32_t i = 0; i < ADMISSION_STRANGER_SOURCE_MAX; i++)
        ck_assert_ptr_null(enter_new(v6(1, (uint8_t)i)));
    ck_assert_ptr_nonnull(enter_new(v6(1, 200)));
    ck_assert_ptr_null(enter_new(v6(2, 1)));
    /* ::1 and mapped addresses of IPv4 begin alike and are no network. */
    for (uint32_t i = 0; i < ADMISSION_STRANGER_SOURCE_MAX - 2; i++)
        ck_assert_ptr_null(enter_new(v4(0x0a000100 + i)));
}
END_TEST

/* Up to the start nobody goes; then the more there are, the likelier; at full somebody always. */
START_TEST(strangers_are_dropped_at_random)
{
    uint32_t full = 0;
    for (uint32_t i = 0; i < ADMISSION_STRANGER_START; i++)
        ck_assert_ptr_null(enter_new(v4(0x0a000000 + i)));
    uint32_t tries = 0;
    for (; admission.strangers < ADMISSION_STRANGER_MAX && tries < 1500; tries++)
        enter_new(v4(0x0b000000 + tries));
    ck_assert_uint_eq(admission.strangers, ADMISSION_STRANGER_MAX);
    /* At 30 to 100 % on the way it takes more than there is room for. */
    ck_assert_uint_gt(tries, 2 * (ADMISSION_STRANGER_MAX - ADMISSION_STRANGER_START));
    uint32_t refused = 0;
    for (uint32_t i = 0; i < 300; i++, full++) {
        struct admission_place *gone = enter_new(v4(0x0c000000 + i));
        ck_assert_ptr_nonnull(gone);
        refused += gone == &places[used - 1];
        ck_assert_uint_eq(admission.strangers, ADMISSION_STRANGER_MAX);
    }
    ck_assert_uint_lt(refused, 30); /* 1 of 65 */
}
END_TEST

/* Strangers, however many, take nothing from the addresses of the roster. */
START_TEST(the_roster_has_places_of_its_own)
{
    struct admission_source known = v4(0x7f000001);
    admission_learn(&admission, 1, &known);
    for (uint32_t i = 0; i < 1000; i++)
        enter_new(v4(0x0a000000 + i));
    struct admission_place *place = &places[used];
    ck_assert_ptr_null(enter_new(known));
    ck_assert(place->known);
    for (uint32_t i = 0; i < 1000; i++)
        enter_new(v4(0x0b000000 + i));
    ck_assert(place->held);
    ck_assert_uint_le(admission.strangers, ADMISSION_STRANGER_MAX);
    ck_assert_uint_eq(admission.known, 1);
}
END_TEST

/* Somebody on a machine of the roster who holds all its places, and takes each that becomes free:
 * a daemon there gets one at once, and keeps it for a handshake in half of its attempts. */
START_TEST(who_holds_all_places_keeps_nobody_out)
{
    enum { ATTEMPTS = 300, ROUND_TRIPS = 4, ACCEPTS = 16 };
    struct admission_source known = v4(0x7f000001);
    struct admission_place daemon = {.held = false};
    admission_learn(&admission, 0, &known);
    for (uint32_t i = 0; i < ADMISSION_KNOWN_SOURCE_MAX; i++)
        ck_assert_ptr_null(enter_new(known));
    uint32_t authenticated = 0, refused = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        refused += enter(&daemon, known) == &daemon;
        for (int i = 0; i < ROUND_TRIPS * ACCEPTS; i++) {
            used = 0; /* any that is free */
            while (places[used].held)
                used++;
            enter_new(known);
        }
        authenticated += daemon.held;
        admission_leave(&admission, &daemon);
    }
    ck_assert_uint_lt(refused, ATTEMPTS / 20);
    ck_assert_uint_gt(authenticated, ATTEMPTS / 2);
}
END_TEST

START_TEST(all_of_the_roster_together_have_a_limit)
{
    for (uint32_t i = 0; i < ADMISSION_NODE_SOURCES; i++) {
        struct admission_source known = v4(0x0a000000 + i);
        admission_learn(&admission, 2, &known);
    }
    for (uint32_t i = 0; i < 1000; i++)
        enter_new(v4(0x0a000000 + i % ADMISSION_NODE_SOURCES));
    ck_assert_uint_eq(admission.known, ADMISSION_KNOWN_MAX);
    ck_assert_uint_eq(admission.strangers, 0);
}
END_TEST

START_TEST(the_last_addresses_of_a_node_are_remembered)
{
    for (uint32_t i = 0; i <= ADMISSION_NODE_SOURCES; i++) {
        struct admission_source source = v4(0x0a000000 + i);
        admission_learn(&admission, 0, &source);
        if (i == ADMISSION_NODE_SOURCES - 1) {
            /* Told again: the newest. */
            source = v4(0x0a000000);
            admission_learn(&admission, 0, &source);
            ck_assert_uint_eq(admission.nodes[0].count, ADMISSION_NODE_SOURCES);
        }
    }
    ck_assert_uint_eq(admission.nodes[0].count, ADMISSION_NODE_SOURCES);
    enter_new(v4(0x0a000000));
    enter_new(v4(0x0a000001));
    enter_new(v4(0x0a000002));
    ck_assert(places[0].known);
    ck_assert(!places[1].known);
    ck_assert(places[2].known);
}
END_TEST

/* Without a descriptor a stranger goes first, and for strangers nobody of the roster does. */
START_TEST(whose_descriptor_is_given_up)
{
    struct admission_source known = v4(0x7f000001), stranger = v4(0x0a000001);
    admission_learn(&admission, 0, &known);
    ck_assert(admission_knows(&admission, &known));
    ck_assert(!admission_knows(&admission, &stranger));
    ck_assert_ptr_null(admission_yield(&admission, &known, random_next()));
    ck_assert_ptr_null(enter_new(known));
    ck_assert_ptr_null(admission_yield(&admission, &stranger, random_next()));
    ck_assert_ptr_eq(admission_yield(&admission, &known, random_next()), &places[0]);
    ck_assert_ptr_null(enter_new(stranger));
    ck_assert_ptr_null(enter_new(v4(0x0a000002)));
    bool gone[3] = {false};
    for (int i = 0; i < 100; i++) {
        ck_assert_ptr_nonnull(admission_yield(&admission, &known, random_next()));
        gone[admission_yield(&admission, &stranger, random_next()) - places] = true;
    }
    ck_assert(!gone[0] && gone[1] && gone[2]);
}
END_TEST

/* A source that is learned in between does not confuse the counts. */
START_TEST(a_place_stays_what_it_was)
{
    struct admission_source source = v4(0x0a000001);
    ck_assert_ptr_null(enter_new(source));
    admission_learn(&admission, 0, &source);
    ck_assert_ptr_null(enter_new(source));
    ck_assert_uint_eq(admission.strangers, 1);
    ck_assert_uint_eq(admission.known, 1);
    admission_leave(&admission, &places[0]);
    admission_leave(&admission, &places[1]);
    ck_assert_uint_eq(admission.strangers, 0);
    ck_assert_uint_eq(admission.known, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("admission");
    TCase *tests = tcase_create("admission");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, whoever_leaves_makes_room);
    tcase_add_test(tests, one_source_has_few_places);
    tcase_add_test(tests, a_network_of_ipv6_is_one_source);
    tcase_add_test(tests, strangers_are_dropped_at_random);
    tcase_add_test(tests, the_roster_has_places_of_its_own);
    tcase_add_test(tests, who_holds_all_places_keeps_nobody_out);
    tcase_add_test(tests, all_of_the_roster_together_have_a_limit);
    tcase_add_test(tests, the_last_addresses_of_a_node_are_remembered);
    tcase_add_test(tests, whose_descriptor_is_given_up);
    tcase_add_test(tests, a_place_stays_what_it_was);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
