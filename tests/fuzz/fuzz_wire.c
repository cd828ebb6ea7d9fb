/* Headers between daemons, and the lists of asks that they carry. Bytes that decode are encoded
 * again to the same bytes. */
#include <string.h>

#include "common/format/wire.h"
#include "tests/fuzz/fuzz.h"

static void check_rank_asks(const uint8_t *bytes, size_t size)
{
    for (; size >= WIRE_RANK_ASK_BYTES; bytes += WIRE_RANK_ASK_BYTES, size -= WIRE_RANK_ASK_BYTES) {
        uint32_t rank;
        struct wire_ask ask;
        if (wire_decode_rank_ask(bytes, size, &rank, &ask) < 0)
            continue;
        uint8_t again[WIRE_RANK_ASK_BYTES];
        wire_encode_rank_ask(again, rank, &ask);
        FUZZ_REQUIRE(memcmp(bytes, again, sizeof(again)) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_header header;
    struct error error;
    if (wire_decode_header(data, size, &header, &error) < 0) {
        FUZZ_REQUIRE(error.text[0]);
        return 0;
    }
    FUZZ_REQUIRE(header.payload_bytes == size - WIRE_HEADER_BYTES);
    uint8_t again[WIRE_HEADER_BYTES];
    wire_encode_header(again, &header);
    FUZZ_REQUIRE(memcmp(data, again, sizeof(again)) == 0);
    char text[256];
    for (uint32_t ranks = 1; ranks <= 64; ranks *= 8) {
        if (wire_ask_check(&header.ask, ranks, &error) < 0)
            continue;
        wire_ask_text(&header.ask, ranks, text, sizeof(text));
        FUZZ_REQUIRE(text[0] && wire_ask_equal(&header.ask, &header.ask));
        (void)wire_ask_elements(&header.ask);
    }
    check_rank_asks(data + WIRE_HEADER_BYTES, size - WIRE_HEADER_BYTES);
    return 0;
}
