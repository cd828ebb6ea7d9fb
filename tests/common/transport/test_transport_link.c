/* The rate that an interface can carry, in folders that are made up, and on this machine. */
#include "common/transport/transport_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/suite.h"

static char folder[] = "/tmp/shoal-link-XXXXXX";

/* Make the files that the system has of an interface. speed NULL: no such file. */
static void put(const char *name, const char *speed, bool device)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/%s/device", folder, name);
    ck_assert(!device || mkdir(path, 0700) == 0);
    if (!speed)
        return;
    snprintf(path, sizeof(path), "%s/%s/speed", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(speed, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void take_away(const char *name)
{
    static const char *const parts[] = {"/device", "/speed", ""};
    char path[256];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s%s", folder, name, parts[i]);
        if (remove(path))
            ck_assert(i < 2);
    }
}

START_TEST(an_interface_of_a_device_says_its_speed)
{
    static const struct {
        const char *name, *speed;
        bool device;
        uint32_t mbits;
    } all[] = {
        {"fast", "100000\n", true, 100000},
        {"slow", "10", true, 10},
        {"virtual", "10000\n", false, 0}, /* a virtual cable's is made up */
        {"unknown", "-1\n", true, 0},
        {"older", "4294967295\n", true, 0},
        {"out", NULL, true, 0},
        {"empty", "", true, 0},
        {"strange", "fast\n", true, 0},
        {"huge", "4294967296\n", true, 0},
    };
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        put(all[i].name, all[i].speed, all[i].device);
        ck_assert_msg(transport_link_mbits(folder, all[i].name) == all[i].mbits, "%s: %u",
                      all[i].name, transport_link_mbits(folder, all[i].name));
        take_away(all[i].name);
    }
    ck_assert_uint_eq(transport_link_mbits(folder, "none"), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

/* Loopback is of no device, whatever the machine is. */
START_TEST(an_address_is_looked_up)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xcb007101)};
    ck_assert_uint_eq(transport_link_mbits_at((struct sockaddr *)&four), 0);
    ck_assert_uint_eq(transport_link_mbits_at((struct sockaddr *)&six), 0);
    ck_assert_uint_eq(transport_link_mbits_at((struct sockaddr *)&nobody), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport_link");
    TCase *cases = tcase_create("transport_link");
    tcase_add_test(cases, an_interface_of_a_device_says_its_speed);
    tcase_add_test(cases, an_address_is_looked_up);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
