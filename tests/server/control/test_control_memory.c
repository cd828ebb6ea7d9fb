/* A process joins while there is no memory for one of the tables that it would be in: it is
 * refused, and the daemon goes on. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/hash.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define HELLO "{\"type\":\"hello\",\"protocol\":3,\"software\":\"test\",\"pid\":1}\n"
#define TABLES_LEAST 6   /* of a connection, its user, its worker and its job */
#define MEMORIES_MOST 40 /* as large, whatever for */

/* The sanitizers have allocators of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REFUSES false
static atomic_int until_refused;
#else
#define REFUSES true
static atomic_int until_refused; /* tables, with the one that is refused; 0: none is */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t item_bytes);

static bool is_refused(size_t bytes)
{
    return bytes == HASH_INITIAL_NUM_BUCKETS * sizeof(UT_hash_bucket) &&
           atomic_load(&until_refused) > 0 && atomic_fetch_sub(&until_refused, 1) == 1;
}

void *malloc(size_t bytes)
{
    return is_refused(bytes) ? NULL : __libc_malloc(bytes);
}

/* A compiler makes this of malloc and zeroes. */
void *calloc(size_t count, size_t item_bytes)
{
    return is_refused(count * item_bytes) ? NULL : __libc_calloc(count, item_bytes);
}
#endif

static char *directory;
static struct control_daemon *daemon_under_test;

static void begin(void)
{
    static const uint16_t any_port = 0;
    struct error error = {0};
    directory = suite_make_directory();
    daemon_under_test = control_daemon_create(directory, 1, 0, &any_port);
    daemon_under_test->config.join_ms = 300;
    ck_assert_msg(control_daemon_start(daemon_under_test, &error) == 0, "%s", error.text);
}

static void end(void)
{
    control_daemon_free(daemon_under_test);
    suite_remove_directory(directory);
}

/* Connect and join, as far as that gets. Return whether it joins. */
static bool joins(void)
{
    struct control_client client;
    const char *line;
    bool joined = false;
    control_client_open(&client, daemon_under_test);
    ssize_t sent = send(client.fd, HELLO, strlen(HELLO), MSG_NOSIGNAL);
    line = sent > 0 ? control_client_line(&client) : NULL;
    if (line) {
        control_client_join(&client, "train", 1, 0);
        line = control_client_line(&client);
        ck_assert_ptr_nonnull(line); /* told why not */
        joined = strstr(line, "\"joined\"");
    }
    control_client_close(&client);
    return joined;
}

/* Each table is made for the first that is in it: of a daemon anew for each. */
START_TEST(test_tables)
{
    int nth = 0, denied = 0;
    if (!REFUSES) {
        suite_skip("test_tables", "the sanitizer's allocator refuses nothing");
        return;
    }
    for (bool refused = true; refused && nth < MEMORIES_MOST;) {
        begin();
        atomic_store(&until_refused, ++nth);
        bool joined = joins();
        refused = atomic_exchange(&until_refused, 0) == 0;
        ck_assert_msg(joined || refused, "memory %d", nth);
        denied += !joined;
        ck_assert(joins());
        end();
    }
    ck_assert_int_ge(denied, TABLES_LEAST);
    ck_assert_int_lt(nth, MEMORIES_MOST);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_memory");
    TCase *cases = tcase_create("memory");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_tables);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
