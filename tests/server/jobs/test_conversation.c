#include "server/jobs/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

#define ALICE 1000u
#define BOB 1001u

static struct conversation conversation;

static void teardown(void)
{
    conversation_clear(&conversation);
}

static void say(const char *line)
{
    ck_assert(conversation_say(&conversation, ALICE, line, strlen(line)));
}

START_TEST(test_what_was_not_heard_is_kept_in_order)
{
    struct error error;
    say("one");
    say("two");
    say("three");
    ck_assert_int_eq(conversation_acknowledge(&conversation, 1, &error), 0);
    ck_assert_str_eq(conversation.first->text, "two");
    ck_assert_str_eq(conversation.first->next->text, "three");
    ck_assert_ptr_null(conversation.first->next->next);
    ck_assert_int_eq(conversation_acknowledge(&conversation, 1, &error), 0);
    ck_assert_int_eq(conversation_acknowledge(&conversation, 3, &error), 0);
    ck_assert_ptr_null(conversation.first);
    ck_assert_uint_eq(conversation.kept_bytes, 0);
    say("four");
    ck_assert_str_eq(conversation.first->text, "four");
    ck_assert_uint_eq(conversation.said, 4);
}
END_TEST

START_TEST(test_nobody_hears_more_than_was_said_or_unhears)
{
    struct error error;
    say("one");
    say("two");
    ck_assert_int_eq(conversation_acknowledge(&conversation, 3, &error), ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(error.text, "3 lines"));
    ck_assert_int_eq(conversation_acknowledge(&conversation, 2, &error), 0);
    ck_assert_int_eq(conversation_acknowledge(&conversation, 1, &error), ERR_PROTOCOL);
}
END_TEST

START_TEST(test_too_much_is_not_kept)
{
    size_t length = 1 << 20;
    char *line = calloc(1, length);
    ck_assert_ptr_nonnull(line);
    for (uint64_t bytes = 0; bytes < CONVERSATION_MOST_BYTES; bytes += length)
        ck_assert(conversation_say(&conversation, ALICE, line, length));
    ck_assert(!conversation_say(&conversation, ALICE, line, 1));
    conversation_clear(&conversation);
    ck_assert_uint_eq(conversation.said, 0);
    ck_assert(conversation_say(&conversation, ALICE, line, length));
    free(line);
}
END_TEST

/* A user begins nothing new when a quarter of all is his; what ends that which he has begun is kept
 * still, and others have the other half. */
START_TEST(test_users_share_what_is_kept)
{
    struct error error;
    size_t length = 1 << 16, lines = 0;
    char *line = calloc(1, length);
    ck_assert_ptr_nonnull(line);
    while (conversation_may_begin(&conversation, ALICE) && lines < 1000) {
        ck_assert(conversation_say(&conversation, ALICE, line, length));
        lines++;
    }
    ck_assert_uint_eq(lines * length, CONVERSATION_USER_MOST_BYTES);
    for (size_t i = 0; i < lines; i++)
        ck_assert(conversation_say(&conversation, ALICE, line, length));
    ck_assert_uint_le(conversation.kept_bytes, CONVERSATION_MOST_BYTES / 2);
    ck_assert(conversation_may_begin(&conversation, BOB));
    ck_assert(conversation_may_begin(&conversation, 0));
    ck_assert(conversation_say(&conversation, BOB, line, length));
    /* Lines that were heard count no longer. */
    ck_assert_int_eq(conversation_acknowledge(&conversation, 2 * lines, &error), 0);
    ck_assert(conversation_may_begin(&conversation, ALICE));
    ck_assert_uint_eq(quota_used(&conversation.users, BOB), length);
    conversation_keep_nothing(&conversation);
    ck_assert_ptr_null(conversation.users.owners);
    free(line);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("conversation");
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, NULL, teardown);
    tcase_add_test(all, test_what_was_not_heard_is_kept_in_order);
    tcase_add_test(all, test_nobody_hears_more_than_was_said_or_unhears);
    tcase_add_test(all, test_too_much_is_not_kept);
    tcase_add_test(all, test_users_share_what_is_kept);
    suite_add_tcase(suite, all);
    return suite_main(suite);
}
