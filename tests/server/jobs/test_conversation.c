#include "server/jobs/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

static struct conversation conversation;

static void teardown(void)
{
    conversation_clear(&conversation);
}

static void say(const char *line)
{
    ck_assert(conversation_say(&conversation, line, strlen(line)));
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
        ck_assert(conversation_say(&conversation, line, length));
    ck_assert(!conversation_say(&conversation, line, 1));
    conversation_clear(&conversation);
    ck_assert_uint_eq(conversation.said, 0);
    ck_assert(conversation_say(&conversation, line, length));
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
    suite_add_tcase(suite, all);
    return suite_main(suite);
}
