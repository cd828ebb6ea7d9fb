/* The daemon's configuration. A text that is taken is printed, and the print is taken and says the
 * same; a text that is refused is refused with a reason. */
#include <stdlib.h>
#include <string.h>

#include "common/config/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    struct config config, again;
    struct config_problems problems;
    if (config_parse(&config, text, "fuzzed.json", &problems) == 0) {
        config_problems_clear(&problems);
        char *once = config_print(&config);
        FUZZ_REQUIRE(once);
        FUZZ_REQUIRE(config_parse(&again, once, "printed.json", &problems) == 0);
        char *twice = config_print(&again);
        FUZZ_REQUIRE(twice && strcmp(once, twice) == 0);
        config_clear(&again);
        free(once);
        free(twice);
    } else {
        FUZZ_REQUIRE(problems.count > 0);
    }
    config_problems_clear(&problems);
    config_clear(&config);
    free(text);
    return 0;
}
