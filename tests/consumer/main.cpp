// Uses the installed headers and library as a stranger would.
#include <tilewright/dtype.h>
#include <tilewright/error.h>
#include <tilewright/version.h>

#include <cstdio>
#include <string_view>

int main() {
    if (std::string_view(tilewright::version()) != TILEWRIGHT_VERSION) return 1;
    if (tilewright::parse_dtype("bf16") != tilewright::bf16) return 1;
    std::printf("tilewright %s\n", tilewright::version());
}
