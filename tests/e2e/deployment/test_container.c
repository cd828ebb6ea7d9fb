/* The container image, without a tool that builds one: what the file says of it, and the daemon run
 * as the image would, in a root with nothing but libc and the bundle. */
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#ifdef SHOAL_SANITIZED
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define FILE_PATH TEST_SOURCE_DIR "/config/container/Containerfile"
#define LINES_MAX 100
#define WORDS_MAX 16
#define PLACE "/opt/shoal" /* of the bundle in the image */

/* The file's instructions in order, continuations joined; `last` begins with the last FROM. */
struct image {
    char *lines[LINES_MAX];
    int count, last;
};

static void image_read(struct image *image)
{
    char line[1024], whole[4096] = "";
    FILE *file = fopen(FILE_PATH, "re");
    ck_assert_ptr_nonnull(file);
    *image = (struct image){0};
    while (fgets(line, sizeof(line), file)) {
        size_t length = strcspn(line, "\n"), used = strlen(whole);
        bool goes_on = length > 0 && line[length - 1] == '\\';
        line[goes_on ? length - 1 : length] = '\0';
        if (used == 0 && (line[0] == '#' || line[0] == '\0'))
            continue;
        ck_assert_uint_lt(used + strlen(line), sizeof(whole));
        snprintf(whole + used, sizeof(whole) - used, "%s", line);
        if (goes_on)
            continue;
        ck_assert_int_lt(image->count, LINES_MAX);
        if (strncmp(whole, "FROM ", 5) == 0)
            image->last = image->count;
        image->lines[image->count++] = strdup(whole);
        whole[0] = '\0';
    }
    ck_assert_str_eq(whole, "");
    fclose(file);
}

static void image_free(struct image *image)
{
    for (int i = 0; i < image->count; i++)
        free(image->lines[i]);
}

/* The nth line of this instruction between two places, behind its name; NULL: there is none. */
static const char *find(const struct image *image, int from, int to, const char *name, int nth)
{
    size_t length = strlen(name);
    for (int i = from; i < to; i++)
        if (strncmp(image->lines[i], name, length) == 0 && image->lines[i][length] == ' ' &&
            nth-- == 0)
            return image->lines[i] + length + 1;
    return NULL;
}

static const char *find_last(const struct image *image, const char *name)
{
    const char *words = find(image, image->last, image->count, name, 0);
    ck_assert_msg(words != NULL, "no %s", name);
    ck_assert_msg(!find(image, image->last, image->count, name, 1), "%s twice", name);
    return words;
}

/* The words of ["a", "b"], the first JSON array in the text; ends with NULL, freed by its caller.
 */
static int words_of(const char *text, const char *words[], char **memory)
{
    int count = 0;
    *memory = strdup(strchr(text, '['));
    for (char *at = *memory; (at = strchr(at, '"')); at++) {
        char *end = strchr(at + 1, '"');
        ck_assert_ptr_nonnull(end);
        *end = '\0';
        words[count++] = at + 1;
        ck_assert_int_lt(count, WORDS_MAX);
        at = end;
    }
    words[count] = NULL;
    return count;
}

START_TEST(test_file)
{
    struct image image;
    image_read(&image);
    const char *base = find(&image, 0, 1, "FROM", 0);
    ck_assert_str_eq(base, "debian:12-slim AS build");
    ck_assert_str_eq(image.lines[image.last], "FROM debian:12-slim");
    ck_assert_str_eq(find(&image, 0, image.last, "WORKDIR", 0), "/src");
    bool bundles = false;
    for (int nth = 0; find(&image, 0, image.last, "RUN", nth); nth++)
        bundles |=
            strstr(find(&image, 0, image.last, "RUN", nth), "make -j\"$(nproc)\" bundle") != NULL;
    ck_assert(bundles);
    /* Nothing comes into the image but what the bundle has. */
    ck_assert_str_eq(find_last(&image, "COPY"), "--from=build /src/build/bundle/ " PLACE "/");
    ck_assert_ptr_null(find(&image, image.last, image.count, "ADD", 0));
    ck_assert_ptr_null(strstr(find_last(&image, "RUN"), "apt"));
    /* The systemd unit says this, too. */
    ck_assert_str_eq(find_last(&image, "STOPSIGNAL"), "SIGTERM");
    ck_assert_str_eq(find_last(&image, "USER"), "shoal");
    ck_assert_str_eq(find(&image, image.last, image.count, "ENV", 0),
                     "IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1");
    ck_assert_str_eq(find_last(&image, "ENTRYPOINT"), "[\"" PLACE "/bin/shoald\"]");
    ck_assert_str_eq(find_last(&image, "CMD"), "[\"--config\", \"/etc/shoal/shoald.json\"]");
    image_free(&image);
}
END_TEST

/* --- in a root of its own ------------------------------------------------------------------- */

static int run(const char *const *argv, char **said)
{
    struct process *process = process_run(argv);
    int code = process_wait(process, 240000);
    if (said)
        ck_assert_int_ge(asprintf(said, "%s%s", process_output(process), process_errors(process)),
                         0);
    process_free(process);
    return code;
}

static void shell(const char *command, const char *argument)
{
    char *said;
    const char *argv[] = {"/bin/sh", "-euc", command, "sh", argument, NULL};
    int code = run(argv, &said);
    ck_assert_msg(code == 0, "%s: %d: %s", command, code, said);
    free(said);
}

/* A script that lays out what debian:12-slim has that a program of the bundle may use, and no
 * library more. */
static const char lay_out[] =
    "cd \"$1\"; mkdir -p etc/shoal run/shoal tmp proc opt lib64 lib/x86_64-linux-gnu;"
    "for name in libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libresolv.so.2; do"
    "  cp -L \"$(/sbin/ldconfig -p | awk -v n=$name '$1 == n { print $NF; exit }')\" "
    "lib/x86_64-linux-gnu; done;"
    "cp -L /lib64/ld-linux-x86-64.so.2 lib64;"
    "printf 'root:x:0:0::/:/bin/sh\\nshoal:x:990:990::/:/bin/sh\\n' > etc/passwd;"
    "printf '{\"node\": \"a\", \"fabric\": {\"provider\": \"tcp\"}}' > etc/shoal/shoald.json;"
    "printf '{\"nodes\": \"a\"}' > etc/shoal/wrong.json";

/* In the root, with the processes' folder that a container has: by right, or as root of a user
 * namespace. NULL: neither is possible here. */
static const char *const *way_in(const char *root)
{
    static const char enter[] =
        "mount --rbind /proc \"$0/proc\" && exec /usr/sbin/chroot \"$0\" \"$@\"";
    static const char *argv[2][WORDS_MAX] = {
        {"/usr/bin/unshare", "--mount", "/bin/sh", "-c", enter},
        {"/usr/bin/unshare", "-r", "--mount", "/bin/sh", "-c", enter}};
    argv[0][5] = root;
    argv[1][6] = root;
    for (int i = 0; i < 2; i++) {
        const char *probe[WORDS_MAX] = {NULL};
        int count = 0;
        while (argv[i][count]) {
            probe[count] = argv[i][count];
            count++;
        }
        probe[count++] = PLACE "/bin/shoald";
        probe[count] = "--version";
        if (run(probe, NULL) == 0)
            return argv[i];
    }
    return NULL;
}

/* The command in the root; said: what it writes, or NULL. */
static void command_make(const char *const *way, const char *const *command, const char **argv)
{
    int count = 0;
    for (int i = 0; way[i]; i++)
        argv[count++] = way[i];
    for (int i = 0; command[i]; i++)
        argv[count++] = command[i];
    argv[count] = NULL;
}

static int run_in(const char *const *way, const char *const *command, char **said)
{
    const char *argv[2 * WORDS_MAX];
    command_make(way, command, argv);
    return run(argv, said);
}

static void check_answers(const char *const *way)
{
    static const char shoald[] = PLACE "/bin/shoald";
    char *said;
    const char *print[] = {shoald, "--print-config", NULL};
    ck_assert_int_eq(run_in(way, print, &said), 0);
    ck_assert_ptr_nonnull(strstr(said, "\"/run/shoal/shoald.sock\""));
    free(said);
    const char *wrong[] = {shoald, "--check-config", "/etc/shoal/wrong.json", NULL};
    ck_assert_int_eq(run_in(way, wrong, &said), 3);
    ck_assert_msg(strstr(said, "wrong.json: /nodes") != NULL, "%s", said);
    free(said);
    const char *option[] = {shoald, "--daemonize", NULL};
    ck_assert_int_eq(run_in(way, option, NULL), 2);
}

/* Start the daemon as the image does, ask as the image asks whether it is well, and stop it with
 * the image's signal. */
static void check_service(const struct image *image, const char *const *way)
{
    const char *start[2 * WORDS_MAX], *health[WORDS_MAX], *argv[3 * WORDS_MAX];
    char *memory[3], *said;
    int count = words_of(find_last(image, "ENTRYPOINT"), start, &memory[0]);
    words_of(find_last(image, "CMD"), start + count, &memory[1]);
    words_of(find_last(image, "HEALTHCHECK"), health, &memory[2]);
    const char *const environment[] = {"IPATH_NO_BACKTRACE=1", "HFI_NO_BACKTRACE=1", NULL};
    command_make(way, start, argv);
    ck_assert_int_eq(run_in(way, health, NULL), 1);
    struct process *daemon =
        process_start(&(struct process_start){.argv = argv, .environment = environment});
    ck_assert_msg(process_wait_text(daemon, "shoald 0.1.0 on node a", CLUSTER_PATIENCE_MS), "%s",
                  process_errors(daemon));
    int code = run_in(way, health, &said);
    ck_assert_msg(code == 0, "%d: %s", code, said);
    free(said);
    process_signal(daemon, SIGTERM);
    code = process_wait(daemon, CLUSTER_PATIENCE_MS);
    ck_assert_msg(code == 0, "%d: %s", code, process_errors(daemon));
    ck_assert_ptr_nonnull(strstr(process_errors(daemon), "ended"));
    process_free(daemon);
    for (int i = 0; i < 3; i++)
        free(memory[i]);
}

START_TEST(test_run)
{
    if (SANITIZED) {
        suite_skip("container", "a sanitized build needs libraries that no bundle has");
        return;
    }
    char *root = suite_make_directory(), place[300];
    struct image image;
    image_read(&image);
    shell(lay_out, root);
    snprintf(place, sizeof(place), "%s" PLACE, root);
    const char *bundle[] = {TEST_SOURCE_DIR "/scripts/bundle.sh", TEST_BUILD_DIR, place, NULL};
    char *said;
    int code = run(bundle, &said);
    ck_assert_msg(code == 0, "%s", said);
    free(said);
    const char *const *way = way_in(root);
    if (way) {
        check_answers(way);
        check_service(&image, way);
    } else {
        suite_skip("container", "no right to mount, nor user namespaces");
    }
    image_free(&image);
    suite_remove_directory(root);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("container");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 280);
    tcase_add_test(core, test_file);
    tcase_add_test(core, test_run);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
