#include "common/base/quota.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

static struct quota quota;

static void start(uint64_t limit)
{
    quota = (struct quota){
        .what = "jobs", .key = "limits.jobs", .node = "a", .limit = limit, .own_user = 7};
}

static void teardown(void)
{
    quota_clear(&quota);
}

/* A user may have one more of what lasts while he has less than half: `before` of others, `own` of
 * his. */
START_TEST(nobody_keeps_more_than_half)
{
    static const struct {
        uint64_t limit, others, user, own;
        bool may;
    } cases[] = {
        {8, 0, 1000, 3, true},  {8, 0, 1000, 4, false}, {8, 4, 1000, 3, true},
        {8, 5, 1000, 3, false}, {1, 0, 1000, 0, true},  {1, 1, 1000, 0, false},
        {2, 0, 1000, 1, false}, {3, 0, 1000, 1, false}, {0, 0, 1000, 0, false},
        {8, 0, 0, 7, true},     {8, 0, 7, 7, true},     {8, 0, 0, 8, false},
        {8, 4, 7, 3, true},     {8, 4, 7, 4, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error error = {0};
        start(cases[i].limit);
        ck_assert_int_eq(quota_take(&quota, 2000, cases[i].others), 0);
        ck_assert_int_eq(quota_take(&quota, cases[i].user, cases[i].own), 0);
        int result = quota_check(&quota, cases[i].user, 1, &error);
        ck_assert_msg(result == (cases[i].may ? 0 : ERR_MEMORY), "case %zu: %d", i, result);
        quota_clear(&quota);
    }
}
END_TEST

START_TEST(a_refusal_says_which_whose_and_what_to_do)
{
    struct error error;
    start(4);
    quota_take(&quota, 1000, 2);
    ck_assert_int_eq(quota_check(&quota, 1000, 1, &error), ERR_MEMORY);
    ck_assert_str_eq(
        error.text,
        "there may be 4 jobs on node a (limits.jobs), 2 of them one user's: there are "
        "2, user 1000 has 2 and asks for 1 more; end some of them first, or raise the limit");
    quota_take(&quota, 1001, 2);
    ck_assert_int_eq(quota_check(&quota, 1002, 1, &error), ERR_MEMORY);
    ck_assert_str_eq(
        error.text,
        "there may be 4 jobs on node a (limits.jobs), 2 of them one user's: there are "
        "4, user 1002 has 0 and asks for 1 more; end some of others, or wait, or raise the limit");
    quota.key = NULL;
    ck_assert_int_eq(quota_refuse(&quota, 1000, 1, &error), ERR_MEMORY);
    ck_assert_ptr_null(strstr(error.text, "raise"));
}
END_TEST

/* One owner may have all of what can be taken away while nobody else asks, and then as much as
 * others have. */
START_TEST(who_has_most_gives_way)
{
    start(8);
    quota_take(&quota, 1000, 8);
    ck_assert_uint_eq(quota_giver(&quota, 1000, 1), 1000);
    for (uint64_t others = 0; others < 4; others++) {
        ck_assert(quota_is_short(&quota, 1));
        ck_assert_uint_eq(quota_giver(&quota, 1001, 1), 1000);
        quota_give_back(&quota, 1000, 1);
        ck_assert_int_eq(quota_take(&quota, 1001, 1), 0);
    }
    ck_assert_uint_eq(quota_giver(&quota, 1001, 1), 1001); /* it has half */
    ck_assert_uint_eq(quota_giver(&quota, 1002, 5), 1002); /* it would have more */
    ck_assert_uint_ne(quota_giver(&quota, 1002, 1), 1002);
    quota_give_back(&quota, 1000, 4);
    ck_assert(!quota_is_short(&quota, 4));
    ck_assert(quota_is_short(&quota, 5));
    ck_assert(quota_is_short(&quota, UINT64_MAX));
}
END_TEST

/* However they ask, and in whatever order they end: each of few that ask for ever gets as much as
 * any other, give or take one. */
START_TEST(all_who_ask_get_as_much)
{
    uint32_t owners = 2 + (uint32_t)_i;
    start(24);
    quota_take(&quota, 0, 24); /* who came first has all */
    srand(1 + (unsigned)_i);
    for (int turn = 0; turn < 20000; turn++) {
        uint64_t asks = (uint64_t)rand() % owners, giver = quota_giver(&quota, asks, 1);
        if (rand() % 8 == 0 && quota_used(&quota, asks) > 0) {
            quota_give_back(&quota, asks, 1);
            continue;
        }
        if (quota_is_short(&quota, 1) && giver == asks)
            continue;
        if (quota_is_short(&quota, 1))
            quota_give_back(&quota, giver, 1);
        quota_take(&quota, asks, 1);
        ck_assert_uint_le(quota.used, quota.limit);
    }
    for (int turn = 0; turn < 2000; turn++) {
        uint64_t asks = (uint64_t)turn % owners, giver = quota_giver(&quota, asks, 1);
        if (quota_is_short(&quota, 1) && giver == asks)
            continue;
        if (quota_is_short(&quota, 1))
            quota_give_back(&quota, giver, 1);
        quota_take(&quota, asks, 1);
    }
    for (uint32_t owner = 0; owner < owners; owner++) {
        ck_assert_uint_ge(quota_used(&quota, owner), quota.limit / owners);
        ck_assert_uint_le(quota_used(&quota, owner), (quota.limit + owners - 1) / owners);
    }
}
END_TEST

/* Bytes, of which one thing takes many: room is made until there is enough, and whoever asks for
 * more than others have makes it himself. */
START_TEST(bytes_are_shared_as_places_are)
{
    start(1000);
    quota_take(&quota, 1000, 900);
    quota_take(&quota, 1001, 100);
    ck_assert_uint_eq(quota_giver(&quota, 1001, 300), 1000);
    ck_assert_uint_eq(quota_giver(&quota, 1001, 800), 1001);
    ck_assert_uint_eq(quota_giver(&quota, 1000, 10), 1000);
}
END_TEST

/* The quota forgets an owner who has nothing. */
START_TEST(who_has_nothing_is_forgotten)
{
    start(100);
    for (uint64_t owner = 0; owner < 100; owner++)
        ck_assert_int_eq(quota_take(&quota, owner, 1), 0);
    ck_assert_int_eq(quota_take(&quota, 5000, 0), 0);
    ck_assert_uint_eq(HASH_COUNT(quota.owners), 100);
    for (uint64_t owner = 0; owner < 100; owner++)
        quota_give_back(&quota, owner, 1);
    ck_assert_ptr_null(quota.owners);
    ck_assert_uint_eq(quota.used, 0);
}
END_TEST

static uint64_t owner_of(const char *text)
{
    struct sockaddr_storage address = {0};
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)&address;
    if (inet_pton(AF_INET, text, &ipv4->sin_addr) == 1)
        address.ss_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &ipv6->sin6_addr) == 1)
        address.ss_family = AF_INET6;
    ck_assert_int_ne(address.ss_family, 0);
    return quota_owner_of((const struct sockaddr *)&address);
}

START_TEST(an_address_says_who_it_is)
{
    static const struct {
        const char *one, *other;
        bool same;
    } cases[] = {
        {"10.0.0.1", "10.0.0.1", true},
        {"10.0.0.1", "10.0.0.2", false},
        {"127.0.0.1", "127.9.8.7", true},
        {"127.0.0.1", "::1", true},
        {"10.0.0.1", "::ffff:10.0.0.1", true},
        {"127.0.0.2", "::ffff:127.0.0.1", true},
        {"2001:db8:0:1::1", "2001:db8:0:1:ffff:1:2:3", true},
        {"2001:db8:0:1::1", "2001:db8:0:2::1", false},
        {"10.0.0.1", "2001:db8::1", false},
        {"::1", "::2", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_msg((owner_of(cases[i].one) == owner_of(cases[i].other)) == cases[i].same,
                      "%s and %s", cases[i].one, cases[i].other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("quota");
    TCase *tests = tcase_create("quota");
    tcase_add_checked_fixture(tests, NULL, teardown);
    tcase_add_test(tests, nobody_keeps_more_than_half);
    tcase_add_test(tests, a_refusal_says_which_whose_and_what_to_do);
    tcase_add_test(tests, who_has_most_gives_way);
    tcase_add_loop_test(tests, all_who_ask_get_as_much, 0, 6);
    tcase_add_test(tests, bytes_are_shared_as_places_are);
    tcase_add_test(tests, who_has_nothing_is_forgotten);
    tcase_add_test(tests, an_address_says_who_it_is);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
