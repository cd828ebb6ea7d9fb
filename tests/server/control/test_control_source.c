/* Where the roster's daemons connect from. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/control/ground/control_internal.h"
#include "tests/lib/suite.h"

enum { NODES = 5, SELF = 4 };

static struct control control;
static struct config config;
static struct config_server servers[NODES];
static struct control_peer *peer_of[NODES];

static void setup(void)
{
    static const char *const addresses[NODES] = {"10.1.2.3", "fd00::7", "localhost", "localhost",
                                                 "127.0.0.1"};
    memset(&control, 0, sizeof(control));
    memset(peer_of, 0, sizeof(peer_of));
    for (int i = 0; i < NODES; i++) {
        snprintf(servers[i].name, sizeof(servers[i].name), "n%d", i);
        snprintf(servers[i].address, sizeof(servers[i].address), "%s", addresses[i]);
        servers[i].port = 7432;
    }
    config = (struct config){.servers = servers, .server_count = NODES, .self = SELF};
    control.config = &config;
    control.peer_of = peer_of;
    control.base = event_base_new();
    ck_assert_ptr_nonnull(control.base);
    ck_assert_int_eq(control_source_begin(&control), 0);
}

static void teardown(void)
{
    control_source_clear(&control);
    if (control.dns)
        evdns_base_free(control.dns, 1);
    event_base_loop(control.base, EVLOOP_NONBLOCK); /* cancelled look-ups end in the loop */
    event_base_free(control.base);
}

static struct admission_source source(const char *text)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {.v4 = {.sin_family = AF_INET}};
    struct admission_source made;
    if (inet_pton(AF_INET, text, &address.v4.sin_addr) != 1) {
        address.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
        ck_assert_int_eq(inet_pton(AF_INET6, text, &address.v6.sin6_addr), 1);
    }
    control_source_of(&address.any, &made);
    return made;
}

static bool knows(const char *text)
{
    struct admission_place place = {.held = false};
    struct admission_source from = source(text);
    ck_assert_ptr_null(admission_enter(&control.admission, &place, &from, 0));
    admission_leave(&control.admission, &place);
    return place.known;
}

START_TEST(addresses_of_the_configuration)
{
    ck_assert(knows("10.1.2.3"));
    ck_assert(knows("fd00::7"));
    ck_assert(!knows("10.1.2.4"));
    ck_assert(!knows("fd00::8"));
    ck_assert(!knows("127.0.0.1")); /* its own, and names that were not looked up yet */
    /* A socket for both families shows an address of IPv4 like this. */
    ck_assert(knows("::ffff:10.1.2.3"));
}
END_TEST

START_TEST(names_are_looked_up)
{
    struct control_peer connected = {.node = 3};
    peer_of[3] = &connected;
    for (int waited = 0; control.admission.nodes[2].count == 0 && waited < 5000; waited += 10) {
        control_source_look_up(&control);
        event_base_loop(control.base, EVLOOP_NONBLOCK);
        poll(NULL, 0, 10); /* between two looks */
    }
    if (control.admission.nodes[2].count == 0) {
        suite_skip("names_are_looked_up", "localhost has no address here");
        return;
    }
    ck_assert(knows("127.0.0.1") || knows("::1"));
    /* Whoever is connected is not looked for, and nobody is again so soon. */
    ck_assert_uint_eq(control.admission.nodes[3].count, 0);
    peer_of[3] = NULL;
    control_source_look_up(&control);
    event_base_loop(control.base, EVLOOP_NONBLOCK);
    ck_assert_uint_eq(control.admission.nodes[3].count, 0);
    control.look_up_ns = 0;
    for (int waited = 0; control.admission.nodes[3].count == 0 && waited < 5000; waited += 10) {
        control_source_look_up(&control);
        event_base_loop(control.base, EVLOOP_NONBLOCK);
        poll(NULL, 0, 10);
    }
    ck_assert_uint_gt(control.admission.nodes[3].count, 0);
}
END_TEST

/* With look-ups under way. */
START_TEST(the_end_in_the_middle)
{
    snprintf(servers[2].address, sizeof(servers[2].address), "nobody.invalid");
    control_source_look_up(&control);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_source");
    TCase *tests = tcase_create("control_source");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, addresses_of_the_configuration);
    tcase_add_test(tests, names_are_looked_up);
    tcase_add_test(tests, the_end_in_the_middle);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
