// Lifetimes of buffers, counted in operations.
#include "cuda/schedule/lifetimes.h"

#include <algorithm>

namespace tilewright::cuda::schedule {
namespace {

class Lives {
  public:
    void follow(const Block& block) {
        for (const Instruction& made : block.body) {
            if (made.is(Op::operation)) ++step_;
            if (is_access(made)) access(made);
            const int begin = step_;
            for (const Block& inner : made.blocks) follow(inner);
            if (made.is(Op::loop)) repeat(begin);
        }
    }
    std::map<std::string, Lifetime> take() { return std::move(found_); }

  private:
    void access(const Instruction& made) {
        for (const Attribute& one : made.attributes) {
            const bool is_buffer = one.name == "reads" || one.name == "writes" ||
                                   one.name == "copies" || one.name == "uses";
            if (!is_buffer) continue;
            found_.try_emplace(one.text, Lifetime{step_, step_}).first->second.last = step_;
        }
    }
    void repeat(int begin) {
        for (auto& [name, life] : found_) {
            if (life.first <= begin && life.last > begin) life.last = step_;
        }
    }

    std::map<std::string, Lifetime> found_;
    int step_ = 0;
};

}  // namespace

std::map<std::string, Lifetime> lifetimes(const Program& program) {
    Lives lives;
    lives.follow(program.body);
    return lives.take();
}

}  // namespace tilewright::cuda::schedule
