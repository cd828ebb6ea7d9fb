/* A daemon ends the conversation before it has begun: shoalctl says why, if the daemon has. */
#include "server/shoalctl/shoalctl_talk.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/suite.h"

static const struct {
    const char *last_words, *told;
} cases[] = {
    {"{\"type\":\"error\",\"request\":0,\"code\":-8,\"text\":\"who are you\"}\n",
     "the daemon at /nowhere says: who are you"},
    {"", "the daemon at /nowhere closed the connection"},
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

START_TEST(test_ended_before_it_began)
{
    int ends[2];
    struct error error = {0};
    const char *words = cases[_i].last_words;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ck_assert_int_eq(send(ends[1], words, strlen(words), 0), (ssize_t)strlen(words));
    close(ends[1]);
    ck_assert(send(ends[0], "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    struct conversation talk = {.path = "/nowhere", .fd = ends[0], .interrupt_fd = -1};
    ck_assert_int_ne(hello_exchange(&talk, &error), 0);
    ck_assert_msg(strstr(error.text, cases[_i].told) != NULL, "%s", error.text);
    conversation_close(&talk);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl_talk");
    TCase *tests = tcase_create("shoalctl_talk");
    tcase_add_loop_test(tests, test_ended_before_it_began, 0, CASES);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
