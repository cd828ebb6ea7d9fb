/* Limits of users, and what they have. */
#include <stdlib.h>
#include <string.h>

#include "server/jobs/account.h"
#include "tests/lib/suite.h"

#define OWN 900u
#define ALICE 1000u
#define BOB 1001u

static struct account_book book;
static struct error error;

static void setup(void)
{
    book = (struct account_book){.node = "a",
                                 .own_uid = OWN,
                                 .limits = {[ACCOUNT_MEMORY] = 100,
                                            [ACCOUNT_LEFT] = 5,
                                            [ACCOUNT_OUTPUT] = 10,
                                            [ACCOUNT_DESCRIPTORS] = 4}};
    error = (struct error){0};
}

static void teardown(void)
{
    account_book_clear(&book);
    ck_assert_ptr_null(book.accounts);
}

static int charge(uint32_t uid, enum account_kind kind, uint64_t amount)
{
    return account_charge(&book, uid, kind, amount, &error);
}

START_TEST(test_up_to_the_limit)
{
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 60), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 40), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 1), ERR_MEMORY);
    ck_assert_str_eq(error.text, "user 1000 may have 100 bytes of arenas and shared memory "
                                 "(limits.user_bytes) on node a, has 100, and asks for 1 more");
    ck_assert_uint_eq(account_used(&book, ALICE, ACCOUNT_MEMORY), 100);
    account_release(&book, ALICE, ACCOUNT_MEMORY, 1);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 1), 0);
}
END_TEST

/* No sum overflows. */
START_TEST(test_any_amount)
{
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, UINT64_MAX), ERR_MEMORY);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 101), ERR_MEMORY);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 0), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 1), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, UINT64_MAX), ERR_MEMORY);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, UINT64_MAX - 1), ERR_MEMORY);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 99), 0);
}
END_TEST

START_TEST(test_users_do_not_share)
{
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 100), 0);
    ck_assert_int_eq(charge(BOB, ACCOUNT_MEMORY, 100), 0);
    ck_assert_int_eq(charge(BOB, ACCOUNT_MEMORY, 1), ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(error.text, "user 1001"));
}
END_TEST

START_TEST(test_kinds_do_not_share)
{
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 100), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_DESCRIPTORS, 4), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_DESCRIPTORS, 1), ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(
        error.text, "4 descriptors under way, being closed, or of shared memory on node a, has 4"));
    ck_assert_int_eq(charge(ALICE, ACCOUNT_OUTPUT, 9), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_OUTPUT, 2), ERR_MEMORY);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_OUTPUT, 1), 0);
}
END_TEST

/* An amount that is there already counts, whatever the limit; more of it may not come. */
START_TEST(test_added)
{
    ck_assert_int_eq(account_add(&book, ALICE, ACCOUNT_DESCRIPTORS, 253, &error), 0);
    ck_assert_uint_eq(account_used(&book, ALICE, ACCOUNT_DESCRIPTORS), 253);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_DESCRIPTORS, 1), ERR_MEMORY);
    ck_assert_int_eq(account_add(&book, ALICE, ACCOUNT_DESCRIPTORS, 1, &error), 0);
    ck_assert_int_eq(charge(BOB, ACCOUNT_DESCRIPTORS, 4), 0);
    account_release(&book, ALICE, ACCOUNT_DESCRIPTORS, 251);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_DESCRIPTORS, 1), 0);
    ck_assert_int_eq(account_add(&book, OWN, ACCOUNT_MEMORY, 0, &error), 0);
    ck_assert_uint_eq(HASH_COUNT(book.accounts), 2);
}
END_TEST

/* A status may be larger than all that a user may have waiting. Memory may not. */
START_TEST(test_the_only_answer)
{
    ck_assert_int_eq(charge(ALICE, ACCOUNT_OUTPUT, 1000), 0);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_OUTPUT, 1), ERR_MEMORY);
    account_release(&book, ALICE, ACCOUNT_OUTPUT, 995);
    ck_assert_int_eq(charge(ALICE, ACCOUNT_OUTPUT, 5), 0);
    ck_assert_int_eq(charge(BOB, ACCOUNT_MEMORY, 101), ERR_MEMORY);
}
END_TEST

START_TEST(test_root_and_the_daemons_own_user)
{
    const uint32_t trusted[] = {0, OWN};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(charge(trusted[i], ACCOUNT_MEMORY, 1000), 0);
        ck_assert_int_eq(charge(trusted[i], ACCOUNT_MEMORY, 1000), 0);
        ck_assert_uint_eq(account_used(&book, trusted[i], ACCOUNT_MEMORY), 2000);
    }
}
END_TEST

START_TEST(test_beyond)
{
    ck_assert(!account_is_beyond(&book, ALICE, ACCOUNT_MEMORY, 100));
    ck_assert(account_is_beyond(&book, ALICE, ACCOUNT_MEMORY, 101));
    ck_assert(!account_is_beyond(&book, 0, ACCOUNT_MEMORY, UINT64_MAX));
    ck_assert(!account_is_beyond(&book, OWN, ACCOUNT_MEMORY, UINT64_MAX));
    book.limits[ACCOUNT_LEFT] = UINT64_MAX; /* none */
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(charge(ALICE, ACCOUNT_LEFT, 1ull << 62), 0);
}
END_TEST

/* Nothing is kept of who has nothing; however many users there were. */
START_TEST(test_accounts_end)
{
    for (uint32_t uid = ALICE; uid < ALICE + 1000; uid++) {
        ck_assert_int_eq(charge(uid, ACCOUNT_MEMORY, 10), 0);
        ck_assert_int_eq(charge(uid, ACCOUNT_DESCRIPTORS, 1), 0);
    }
    ck_assert_uint_eq(HASH_COUNT(book.accounts), 1000);
    for (uint32_t uid = ALICE; uid < ALICE + 1000; uid++) {
        account_release(&book, uid, ACCOUNT_MEMORY, 4);
        account_release(&book, uid, ACCOUNT_MEMORY, 6);
        account_release(&book, uid, ACCOUNT_OUTPUT, 0);
        ck_assert_uint_eq(account_used(&book, uid, ACCOUNT_DESCRIPTORS), 1);
        account_release(&book, uid, ACCOUNT_DESCRIPTORS, 1);
        ck_assert_uint_eq(account_used(&book, uid, ACCOUNT_DESCRIPTORS), 0);
    }
    ck_assert_ptr_null(book.accounts);
    account_release(&book, ALICE, ACCOUNT_OUTPUT, 0); /* of nobody */
}
END_TEST

/* A charge that is refused leaves nothing behind. */
START_TEST(test_refused)
{
    ck_assert_int_eq(charge(ALICE, ACCOUNT_MEMORY, 101), ERR_MEMORY);
    ck_assert_ptr_null(book.accounts);
}
END_TEST

/* Many charges and releases against plain counters. */
START_TEST(test_random)
{
    uint64_t counters[4][ACCOUNT_KINDS] = {{0}};
    srand(7);
    for (int i = 0; i < 100000; i++) {
        uint32_t user = (uint32_t)rand() % 4;
        enum account_kind kind = (enum account_kind)(rand() % ACCOUNT_KINDS);
        uint64_t *counter = &counters[user][kind], amount = (uint64_t)rand() % 12;
        if (rand() % 2) {
            amount = amount < *counter ? amount : *counter;
            account_release(&book, ALICE + user, kind, amount);
            *counter -= amount;
        } else {
            bool fits =
                *counter + amount <= book.limits[kind] || (kind != ACCOUNT_MEMORY && *counter == 0);
            ck_assert_int_eq(charge(ALICE + user, kind, amount), fits ? 0 : ERR_MEMORY);
            *counter += fits ? amount : 0;
        }
        ck_assert_uint_eq(account_used(&book, ALICE + user, kind), *counter);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("account");
    TCase *cases = tcase_create("account");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_up_to_the_limit);
    tcase_add_test(cases, test_any_amount);
    tcase_add_test(cases, test_users_do_not_share);
    tcase_add_test(cases, test_kinds_do_not_share);
    tcase_add_test(cases, test_added);
    tcase_add_test(cases, test_the_only_answer);
    tcase_add_test(cases, test_root_and_the_daemons_own_user);
    tcase_add_test(cases, test_beyond);
    tcase_add_test(cases, test_accounts_end);
    tcase_add_test(cases, test_refused);
    tcase_add_test(cases, test_random);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
