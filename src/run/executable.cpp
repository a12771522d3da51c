// A traced kernel made ready for a device.
#include "run/executable.h"

#include <utility>

#include "cpu/interpreter.h"

namespace tilewright::run {

namespace {

class Interpreted : public Executable {
  public:
    explicit Interpreted(ir::Function kernel) : kernel_(std::move(kernel)) {}
    void run(const ir::Arguments& arguments) const override { cpu::interpret(kernel_, arguments); }

  private:
    ir::Function kernel_;
};

class Checked : public Executable {
  public:
    Checked(ir::Function kernel, std::vector<bool> outputs) : kernel_(std::move(kernel)) {
        options_.outputs = std::move(outputs);
    }
    void run(const ir::Arguments& arguments) const override {
        cpu::interpret_checked(kernel_, arguments, options_);
    }

  private:
    ir::Function kernel_;
    cpu::CheckOptions options_;
};

}  // namespace

std::unique_ptr<Executable> make_executable(ir::Function kernel, Machine machine,
                                            std::vector<bool> outputs) {
    if (machine == Machine::checked) {
        return std::make_unique<Checked>(std::move(kernel), std::move(outputs));
    }
    return std::make_unique<Interpreted>(std::move(kernel));
}

}  // namespace tilewright::run
