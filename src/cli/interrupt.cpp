// A signal handler that writes what was prepared and ends the process.
#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace tilewright::cli {
namespace {

struct Legacy {
    std::string words, data;
};
// Old ones are never freed: the handler may be reading one.
std::atomic<const Legacy*> g_legacy{nullptr};

void write_all(int file, const std::string& text) {
    for (std::size_t done = 0; done < text.size();) {
        const ssize_t count = ::write(file, text.data() + done, text.size() - done);
        if (count <= 0) return;
        done += static_cast<std::size_t>(count);
    }
}

extern "C" void end_on_signal(int signal) {
    if (const Legacy* const legacy = g_legacy.load()) {
        write_all(STDERR_FILENO, legacy->words);
        write_all(STDOUT_FILENO, legacy->data);
    }
    ::_exit(128 + signal);
}

}  // namespace

OnInterrupt::OnInterrupt() {
    g_legacy = nullptr;
    struct sigaction action = {};
    action.sa_handler = end_on_signal;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
}

OnInterrupt::~OnInterrupt() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
}

void OnInterrupt::leave(std::string words, std::string data) {
    static std::vector<std::unique_ptr<const Legacy>> all;
    all.push_back(std::make_unique<const Legacy>(Legacy{std::move(words), std::move(data)}));
    g_legacy = all.back().get();
}

}  // namespace tilewright::cli
