// A traced kernel made ready for a device.
#include "run/executable.h"

#include <utility>

#include "cpu/interpreter.h"

namespace tilewright::run {

namespace {

class Interpreted : public Executable {
  public:
    Interpreted(ir::Function kernel, Machine machine)
        : kernel_(std::move(kernel)), machine_(machine) {}

    void run(const ir::Arguments& arguments) const override {
        if (machine_ == Machine::checked) {
            cpu::interpret_checked(kernel_, arguments);
        } else {
            cpu::interpret(kernel_, arguments);
        }
    }

  private:
    ir::Function kernel_;
    Machine machine_;
};

}  // namespace

std::unique_ptr<Executable> make_executable(ir::Function kernel, Machine machine) {
    return std::make_unique<Interpreted>(std::move(kernel), machine);
}

}  // namespace tilewright::run
