#include "tests/lib/suite.h"

#include <ftw.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The program, of whose tests each is a process: folders have its number in their names. */
static pid_t program;

static const char *directories_parent(void)
{
    const char *parent = getenv("TMPDIR");
    return parent ? parent : "/tmp";
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status, (void)type, (void)place;
    return remove(path);
}

static void log_show(const char *path)
{
    char line[1024];
    FILE *file = fopen(path, "re");
    printf("--- %s\n", path);
    while (file && fgets(line, sizeof(line), file))
        fputs(line, stdout);
    if (file)
        fclose(file);
}

static void logs_show(const char *directory)
{
    char pattern[4096];
    glob_t logs;
    snprintf(pattern, sizeof(pattern), "%s/*.log", directory);
    if (glob(pattern, 0, NULL, &logs) == 0)
        for (size_t i = 0; i < logs.gl_pathc; i++)
            log_show(logs.gl_pathv[i]);
    globfree(&logs);
}

/* Show what the daemons of failed tests said, and remove their directories. The processes of a
 * failed test end at once, so nobody else does. */
static void directories_remove(void)
{
    char pattern[4096];
    glob_t left;
    snprintf(pattern, sizeof(pattern), "%s/shoal-test-%d-??????", directories_parent(),
             (int)program);
    if (glob(pattern, 0, NULL, &left) == 0)
        for (size_t i = 0; i < left.gl_pathc; i++) {
            logs_show(left.gl_pathv[i]);
            nftw(left.gl_pathv[i], remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        }
    globfree(&left);
}

int suite_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    program = getpid();
    srunner_run_all(runner, CK_NORMAL);
    directories_remove();
    int failed = srunner_ntests_failed(runner);
    int run = srunner_ntests_run(runner);
    srunner_free(runner);
    if (run == 0)
        printf("no test ran\n");
    return failed == 0 && run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

void suite_skip(const char *name, const char *reason, ...)
{
    va_list arguments;
    va_start(arguments, reason);
    printf("SKIP %s: ", name);
    vprintf(reason, arguments);
    printf("\n");
    fflush(stdout);
    va_end(arguments);
}

char *suite_make_directory(void)
{
    char *directory = NULL;
    if (asprintf(&directory, "%s/shoal-test-%d-XXXXXX", directories_parent(), (int)program) < 0)
        abort();
    if (!mkdtemp(directory))
        abort();
    return directory;
}

void suite_remove_directory(char *directory)
{
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(directory);
}
