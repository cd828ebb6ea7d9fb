#include "tests/lib/suite.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int suite_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
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
    const char *parent = getenv("TMPDIR");
    char *directory = NULL;
    if (asprintf(&directory, "%s/shoal-test-XXXXXX", parent ? parent : "/tmp") < 0)
        abort();
    if (!mkdtemp(directory))
        abort();
    return directory;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status, (void)type, (void)place;
    return remove(path);
}

void suite_remove_directory(char *directory)
{
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(directory);
}
