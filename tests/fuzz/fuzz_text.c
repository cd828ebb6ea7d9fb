/* Numbers and sizes as people write them, and JSON of whatever bytes. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/json_text.h"
#include "common/text/number_text.h"
#include "common/text/size_text.h"
#include "tests/fuzz/fuzz.h"

static void check_sizes(const char *text)
{
    uint64_t number, bytes;
    struct error error;
    if (number_text_parse(text, 3, 1000000, &number, &error) == 0)
        FUZZ_REQUIRE(number >= 3 && number <= 1000000);
    if (size_text_parse(text, &bytes, &error) == 0) {
        char printed[SIZE_TEXT_BYTES];
        size_text_print(bytes, printed, sizeof(printed));
        FUZZ_REQUIRE(strlen(printed) < sizeof(printed));
    }
}

/* Whatever the bytes, the document is JSON, and what was UTF-8 comes back as it was. */
static void check_json(const char *text)
{
    struct json_text json;
    json_text_init(&json);
    json_text_open_object(&json, NULL);
    json_text_string(&json, "text", text);
    json_text_close_object(&json);
    char *document = json_text_take(&json, NULL);
    FUZZ_REQUIRE(document);
    json_t *parsed = json_loads(document, 0, NULL);
    FUZZ_REQUIRE(parsed);
    if (json_text_is_utf8(text))
        FUZZ_REQUIRE(strcmp(json_string_value(json_object_get(parsed, "text")), text) == 0);
    json_decref(parsed);
    free(document);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    check_sizes(text);
    check_json(text);
    free(text);
    return 0;
}
